/* SPDX-License-Identifier: GPL-2.0-or-later */
/* memfd N BYTES: N memfds of BYTES, sized, mapped and filled; they go with the process. */
#include "workload.h"

#include <sys/mman.h>

int main(int argc, char **argv)
{
	unsigned long count, length;

	if (argc < 3)
		usage("memfd N BYTES");
	count = number(argv[1]);
	length = number(argv[2]);
	begin();
	for (unsigned long i = 0; i < count; i++) {
		char name[64], *memory;
		int file;

		snprintf(name, sizeof(name), "rtdebug-memfd-%lu", i);
		file = memfd_create(name, MFD_CLOEXEC);
		if (file < 0)
			die("memfd_create");
		if (ftruncate(file, (off_t)length))
			die("ftruncate");
		memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (memory == MAP_FAILED)
			die("mmap");
		memset(memory, 1, length);
		step("memfd_create name=%s length_bytes=%lu", name, length);
	}
	return 0;
}
