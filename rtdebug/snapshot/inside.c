/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a process sees and may do with memory inside a container, that cannot be seen from outside: seccomp, LSM and
 * capabilities decide it at the call. Each line: `figure NAME NUMBER`, `limit NAME SOFT HARD` or `call NAME ERRNO`
 * (0: it works). Everything it makes is a page or two of its own and gone with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define PAGE 4096UL

static void told(const char *name, long result)
{
	printf("call %s %d\n", name, result < 0 ? errno : 0);
}

static void limit(const char *name, int which)
{
	struct rlimit both;

	if (getrlimit(which, &both) == 0)
		printf("limit %s %lld %lld\n", name, (long long)both.rlim_cur, (long long)both.rlim_max);
}

static void total_of_meminfo(void)
{
	char line[256];
	unsigned long kib;
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemTotal: %lu kB", &kib) == 1)
			printf("figure meminfo_total_bytes %lu\n", kib * 1024);
}

static void advise(const char *name, int advice)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return;
	page[0] = 1;
	told(name, madvise(page, PAGE, advice));
	munmap(page, PAGE);
}

static void shared_memory(void)
{
	int file = memfd_create("rtdebug", MFD_CLOEXEC);
	int segment;

	told("memfd_create", file);
	segment = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
	told("shmget", segment);
	if (segment >= 0)
		shmctl(segment, IPC_RMID, NULL);
	told("write_dev_shm", access("/dev/shm", W_OK));
}

static void locking(void)
{
	static char page[PAGE];
	void *huge = mmap(NULL, 2UL << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	told("mlock", mlock(page, sizeof(page)));
	told("mmap_hugetlb", huge == MAP_FAILED ? -1 : 0);
	told("userfaultfd", syscall(SYS_userfaultfd, 0));
	told("pidfd_open", syscall(SYS_pidfd_open, getpid(), 0));
}

int main(void)
{
	struct sysinfo host;

	if (sysinfo(&host) == 0)
		printf("figure sysinfo_total_bytes %llu\n", (unsigned long long)host.totalram * host.mem_unit);
	total_of_meminfo();
	printf("figure cpus %d\n", get_nprocs());
	printf("figure thp_disabled %d\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
	limit("as", RLIMIT_AS);
	limit("data", RLIMIT_DATA);
	limit("stack", RLIMIT_STACK);
	limit("memlock", RLIMIT_MEMLOCK);
	limit("nofile", RLIMIT_NOFILE);
	limit("nproc", RLIMIT_NPROC);
	advise("madvise_hugepage", 14);
	advise("madvise_free", 8);
	advise("madvise_cold", 20);
	advise("madvise_pageout", 21);
	advise("madvise_populate_write", 23);
	shared_memory();
	locking();
	return 0;
}
