/* SPDX-License-Identifier: GPL-2.0-or-later */
/* shm_posix N BYTES [unlink|leak] [NAME]: N POSIX segments of BYTES, created, sized, mapped, filled. */
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
	unsigned long count, length;
	const char *prefix;
	char name[200];
	int leak;

	if (argc < 3)
		usage("shm_posix N BYTES [unlink|leak] [NAME]");
	count = number(argv[1]);
	length = number(argv[2]);
	leak = argc > 3 && !strcmp(argv[3], "leak");
	prefix = argc > 4 ? argv[4] : "rtdebug-posix";
	begin();
	for (unsigned long i = 0; i < count; i++) {
		struct stat status;
		char *memory;
		int file;

		snprintf(name, sizeof(name), "/%s-%d-%lu", prefix, getpid(), i);
		file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
		if (file < 0)
			die("shm_open");
		if (ftruncate(file, (off_t)length))
			die("ftruncate");
		memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (memory == MAP_FAILED)
			die("mmap");
		memset(memory, 1, length);
		if (fstat(file, &status))
			die("fstat");
		step("shm_open name=%s length_bytes=%lu inode=%lu", name + 1, length, (unsigned long)status.st_ino);
		close(file);
	}
	for (unsigned long i = 0; i < count && !leak; i++) {
		snprintf(name, sizeof(name), "/%s-%d-%lu", prefix, getpid(), i);
		if (shm_unlink(name))
			die("shm_unlink");
		step("shm_unlink name=%s", name + 1);
	}
	return 0;
}
