#include <iostream>

#include "core/cli/cli.h"

int main(int argc, char** argv) {
  return nnscaler::run_cli(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
