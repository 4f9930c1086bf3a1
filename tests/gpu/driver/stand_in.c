// Stands in for the library that a program finds as libcuda.so.1: loader.c is linked with it.
int stand_in_answer(void) { return 4242; }
int cuInit(unsigned flags) { return flags ? 4243 : 4244; }
