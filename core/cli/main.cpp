#include "core/cli/cli.h"

int main(int argc, char** argv) { return nnscaler::run_cli({argv + 1, argv + argc}); }
