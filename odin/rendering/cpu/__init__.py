"""Our own renderer for machines without a GPU: Numba kernels that follow gsplat's reference functions.

Read `renderer` first, then `projection`, `sorting`, `rasterization` and `loss`. A kernel and its helpers share one
file because Numba's on-disk cache notices changes of the kernel's own file only.
"""
