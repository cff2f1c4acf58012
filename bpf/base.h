/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Shorthands that all programs use, whatever their maps. */
#ifndef RTDEBUG_BASE_H
#define RTDEBUG_BASE_H

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define BIT(n) (1ULL << (n))

/* Reads one field of a kernel structure; 0 where the kernel refuses, as it does below NULL. The compiler must not know
 * of a NULL, for its field has no address in C: LLVM 19 took the NULL at the end of a loop for a proof that the loop
 * never ends, and left out its counter. */
#define KREAD(pointer, field) ({ \
	typeof(pointer) base_ = (pointer); \
	typeof((pointer)->field) value_; \
	asm("" : "+r"(base_)); \
	bpf_probe_read_kernel((void *)&value_, sizeof(value_), (const void *)&(base_)->field); \
	value_; })

#define CONTAINER_OF(pointer, type, member) ((type *)((char *)(pointer) - __builtin_offsetof(type, member)))

#endif
