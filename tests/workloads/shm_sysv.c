/* SPDX-License-Identifier: GPL-2.0-or-later */
/* shm_sysv N BYTES [remove|leak]: N System V segments of BYTES: shmget, shmat, fill, shmdt, IPC_RMID. */
#include "workload.h"

#include <sys/ipc.h>
#include <sys/shm.h>

int main(int argc, char **argv)
{
	unsigned long count, length;
	int leak;

	if (argc < 3)
		usage("shm_sysv N BYTES [remove|leak]");
	count = number(argv[1]);
	length = number(argv[2]);
	leak = argc > 3 && !strcmp(argv[3], "leak");
	begin();
	for (unsigned long i = 0; i < count; i++) {
		int segment = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);
		char *memory;

		if (segment < 0)
			die("shmget");
		memory = shmat(segment, NULL, 0);
		if (memory == (char *)-1)
			die("shmat");
		memset(memory, 1, length);
		if (shmdt(memory))
			die("shmdt");
		if (!leak && shmctl(segment, IPC_RMID, NULL))
			die("shmctl");
		step("shmget shm_id=%d length_bytes=%lu address=%p removed=%d", segment, length, (void *)memory, !leak);
	}
	return 0;
}
