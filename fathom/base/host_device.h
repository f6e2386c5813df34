// FATHOM_HD marks functions that nvcc compiles for the host and the device; elsewhere it is empty.
#pragma once

#if defined(__CUDACC__)
#define FATHOM_HD __host__ __device__
#else
#define FATHOM_HD
#endif
