/* SPDX-License-Identifier: GPL-2.0-or-later */
/* madvise N ADVICE [BYTES]: N madvise calls of BYTES each (one page) on memory of its own. */
#include "advice.h"

#include <sys/mman.h>

int main(int argc, char **argv)
{
	unsigned long count, length;
	int advice, failed = 0, error = 0;
	char *memory;

	if (argc < 3)
		usage("madvise N ADVICE [BYTES]");
	count = number(argv[1]);
	advice = advice_number(argv[2]);
	length = argc > 3 ? number(argv[3]) : (unsigned long)sysconf(_SC_PAGESIZE);
	begin();
	/* MADV_REMOVE wants a shared mapping, MADV_FREE a private one. */
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
		      MAP_ANONYMOUS | (advice == 9 ? MAP_SHARED : MAP_PRIVATE), -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, length);
	for (unsigned long i = 0; i < count; i++)
		if (madvise(memory, length, advice)) {
			failed++;
			error = errno;
		}
	step("madvise count=%lu address=%p length_bytes=%lu advice=%d failed=%d errno=%s", count, (void *)memory,
	     length, advice, failed, error_name(error));
	return 0;
}
