/* SPDX-License-Identifier: GPL-2.0-or-later */
/* sigbus_truncate [FOLDER]: maps 3 pages of a file, cuts it to one, reads the second: dies of SIGBUS. */
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	unsigned long page = (unsigned long)sysconf(_SC_PAGESIZE);
	volatile char *memory;
	char path[300];
	int file;

	snprintf(path, sizeof(path), "%s/rtdebug-truncated-%d", argc > 1 ? argv[1] : "/dev/shm", getpid());
	begin();
	file = open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
	if (file < 0 || ftruncate(file, (off_t)(3 * page)))
		die(path);
	memory = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memory[0] = 1;
	if (ftruncate(file, (off_t)page) || unlink(path))
		die(path);
	step("sigbus address=%p file_length_bytes=%lu file_offset_bytes=%lu", (void *)(memory + page), page, page);
	return memory[page];
}
