// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Prints where its functions are, the stack of a call as the kernel would take it by frame pointers, and
 * where it put code of its own (named in /tmp/perf-PID.map); then obeys lines of standard input:
 * `load FILE SYMBOL` (with -DWITH_DLOPEN), `fork`. Ends at end of file.
 *
 * cc -O1 -fno-omit-frame-pointer -fno-optimize-sibling-calls
 */
#define _GNU_SOURCE
#ifdef WITH_DLOPEN
#include <dlfcn.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

/* -DPREFIX=other_ gives a program with other names at the same addresses. */
#ifndef PREFIX
#define PREFIX target_
#endif
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(name) JOIN(PREFIX, name)
#define SHOW(name) printf("function %s %lx\n", #name, (unsigned long)(name))

/* Exported, so that a stripped program still has them in .dynsym. */
NOINLINE void NAME(leaf)(void)
{
	void **frame = __builtin_frame_address(0);

here:
	printf("stack %lx", (unsigned long)&&here);
	for (int depth = 0; depth < 3; depth++) {
		printf(" %lx", (unsigned long)frame[1]);
		frame = frame[0];
	}
	printf("\n");
}

NOINLINE void NAME(middle)(void)
{
	NAME(leaf)();
	__asm__ volatile("");
}

NOINLINE void NAME(outer)(void)
{
	NAME(middle)();
	__asm__ volatile("");
}

static NOINLINE void NAME(hidden)(void)
{
	__asm__ volatile("nop\n\tnop\n\tnop");
}

static void own_code(void)
{
	char path[64];
	unsigned char *code = mmap(NULL, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	FILE *map = fopen(path, "wx");
	if (!map)
		return;
	fprintf(map, "%lx 40 LazyCompile:~stale file.js:1\n", (unsigned long)code);
	fprintf(map, "%lx 40 LazyCompile:*hot file.js:7\n", (unsigned long)code);
	fclose(map);
	printf("jit %lx %s\n", (unsigned long)code, path);
}

static void obey(char *line)
{
#ifdef WITH_DLOPEN
	char *file = strtok(line, " \n"), *name;

	if (file && !strcmp(file, "load")) {
		file = strtok(NULL, " \n");
		name = strtok(NULL, " \n");
		void *library = dlopen(file, RTLD_NOW);
		printf("loaded %lx\n", library ? (unsigned long)dlsym(library, name) : 0);
	}
#endif
	if (!strncmp(line, "fork", 4)) {
		pid_t pid = fork();

		if (pid == 0) {
			pause();
			_exit(0);
		}
		printf("forked %d\n", pid);
	}
}

int main(void)
{
	char line[4096];

	printf("pid %d\n", getpid());
	printf("function leaf %lx\n", (unsigned long)NAME(leaf));
	printf("function middle %lx\n", (unsigned long)NAME(middle));
	printf("function hidden %lx\n", (unsigned long)NAME(hidden));
	SHOW(malloc);
	SHOW(madvise);
	NAME(hidden)();
	NAME(outer)();
	own_code();
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		obey(line);
		fflush(stdout);
	}
	return 0;
}
