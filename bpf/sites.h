/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Allocation sites: what each place in a program has allocated and freed, added up in the kernel. Layouts are read by
 * rtdebug/leaks/site_maps.py.
 */
#ifndef RTDEBUG_SITES_H
#define RTDEBUG_SITES_H

#define SITE_TOP 4
#define UNPAIRED (-4096)

enum site_kind { SITE_MMAP = 1, SITE_BRK, SITE_FAULT, SITE_MALLOC };

/* A place in a program. `life` tells the program that runs in a process from the one before its exec, and a process
 * from another that has its pid later. Without frame pointers the stack is short or wrong: then `caller`, which is
 * always right, still tells places apart. */
struct site_key {
	u32 tgid;
	u32 life;
	s32 stack_id;             /* UNPAIRED: what was freed and never seen allocated */
	u32 kind;
	u64 caller;
};

struct site {
	u64 allocated_bytes;
	u64 freed_bytes;
	u64 allocations;
	u64 frees;
	u64 top[SITE_TOP];        /* the first words on the stack, once */
};

BPF_TABLE("hash", u32, u32, watched, 16384);   /* tgid -> life */
BPF_TABLE("hash", struct site_key, struct site, sites, 16384);
BPF_STACK_TRACE(stacks, 16384);
BPF_TABLE("percpu_array", u32, struct site, scratch, 1);
/* What found no room, and how often the programs on malloc and its kin ran: at entries, and at returns. */
enum counted { LOST_SITE, LOST_REGION, LOST_ALLOCATION, LOST_THREAD, ENTRIES, RETURNS, COUNTED };

BPF_TABLE("percpu_array", u32, u64, counts, COUNTED);

static __always_inline void count(u32 what)
{
	u64 *number = counts.lookup(&what);

	if (number)
		(*number)++;
}

static __always_inline u32 life_of(u32 tgid)
{
	u32 *life = watched.lookup(&tgid);

	return life ? *life : 0;
}

static __always_inline u32 new_life(void)
{
	return bpf_get_prandom_u32() | 1;
}

/* An address where the C library's code returns to, at a place where it has made no frame. */
static __always_inline u64 caller_at(u64 stack_pointer)
{
	u64 caller = 0;

	read_user(&caller, sizeof(caller), (void *)stack_pointer);
	return caller;
}

static __always_inline void add_allocated(struct site_key *key, u64 bytes, u64 stack_pointer)
{
	struct site *site = sites.lookup(key);
	u32 zero = 0;

	if (!site) {
		struct site *first = scratch.lookup(&zero);

		if (!first)
			return;
		first->allocated_bytes = first->freed_bytes = first->allocations = first->frees = 0;
		if (!stack_pointer || read_user(first->top, sizeof(first->top), (void *)stack_pointer))
			__builtin_memset(first->top, 0, sizeof(first->top));
		sites.insert(key, first);
		site = sites.lookup(key);
		if (!site) {
			count(LOST_SITE);
			return;
		}
	}
	__sync_fetch_and_add(&site->allocated_bytes, bytes);
	__sync_fetch_and_add(&site->allocations, 1);
}

static __always_inline void add_freed(struct site_key *key, u64 bytes)
{
	struct site *site = sites.lookup(key);

	if (!site)
		return;
	__sync_fetch_and_add(&site->freed_bytes, bytes);
	__sync_fetch_and_add(&site->frees, 1);
}

static __always_inline void add_unpaired(u32 tgid, u32 life, u32 kind, u64 bytes)
{
	struct site_key key = { .tgid = tgid, .life = life, .stack_id = UNPAIRED, .kind = kind };
	struct site *site = sites.lookup(&key);
	u32 zero = 0;

	if (!site) {
		struct site *first = scratch.lookup(&zero);

		if (!first)
			return;
		__builtin_memset(first, 0, sizeof(*first));
		sites.insert(&key, first);
	}
	add_freed(&key, bytes);
}

#endif
