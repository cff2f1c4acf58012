/* SPDX-License-Identifier: GPL-2.0-or-later */
/* MADV_x by name or number; the numbers are the kernel's, in case libc's headers are older. */
#ifndef ADVICE_H
#define ADVICE_H

#include "workload.h"

static inline int advice_number(const char *name)
{
	static const struct {
		const char *name;
		int number;
	} advices[] = {
		{ "MADV_NORMAL", 0 },
		{ "MADV_RANDOM", 1 },
		{ "MADV_SEQUENTIAL", 2 },
		{ "MADV_WILLNEED", 3 },
		{ "MADV_DONTNEED", 4 },
		{ "MADV_FREE", 8 },
		{ "MADV_REMOVE", 9 },
		{ "MADV_DONTFORK", 10 },
		{ "MADV_DOFORK", 11 },
		{ "MADV_MERGEABLE", 12 },
		{ "MADV_UNMERGEABLE", 13 },
		{ "MADV_HUGEPAGE", 14 },
		{ "MADV_NOHUGEPAGE", 15 },
		{ "MADV_DONTDUMP", 16 },
		{ "MADV_DODUMP", 17 },
		{ "MADV_WIPEONFORK", 18 },
		{ "MADV_KEEPONFORK", 19 },
		{ "MADV_COLD", 20 },
		{ "MADV_PAGEOUT", 21 },
		{ "MADV_POPULATE_READ", 22 },
		{ "MADV_POPULATE_WRITE", 23 },
		{ "MADV_DONTNEED_LOCKED", 24 },
		{ "MADV_COLLAPSE", 25 },
	};

	for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]); i++)
		if (!strcmp(name, advices[i].name))
			return advices[i].number;
	return (int)number(name);
}

#endif
