/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Every difference between kernels and architectures, and the commit that made it. HAS_FIELD_<struct>__<field>,
 * HAS_TYPE_<struct> and HAS_TASK_ARG_<tracepoint> are defined from this kernel's BTF (rtdebug/tracing/shim.py):
 * the question is what the kernel has, never which version it says it is.
 */
#ifndef RTDEBUG_COMPAT_H
#define RTDEBUG_COMPAT_H

/* --- system calls: number and arguments as they lie in pt_regs, also at the call's end --- */
#ifdef TYPED_TRACEPOINTS
#define REGISTER(regs, name) ((regs)->name)
#else
#define REGISTER(regs, name) KREAD(regs, name)   /* for the verifier, regs is a mere number */
#endif
#if defined(__x86_64__)
#define SYSCALL_ID(regs) ((u32)REGISTER(regs, orig_ax))
#define ARG1(regs) REGISTER(regs, di)
#define ARG2(regs) REGISTER(regs, si)
#define ARG3(regs) REGISTER(regs, dx)
#define ARG4(regs) REGISTER(regs, r10)
#define ARG5(regs) REGISTER(regs, r8)
enum {
	NR_write = 1, NR_open = 2, NR_mmap = 9, NR_munmap = 11, NR_brk = 12, NR_pwrite64 = 18, NR_writev = 20,
	NR_mremap = 25, NR_madvise = 28, NR_shmget = 29, NR_shmat = 30, NR_shmctl = 31, NR_sendfile = 40,
	NR_shmdt = 67, NR_ftruncate = 77, NR_mkdir = 83, NR_creat = 85, NR_unlink = 87, NR_openat = 257,
	NR_mkdirat = 258, NR_unlinkat = 263, NR_splice = 275, NR_fallocate = 285, NR_pwritev = 296,
	NR_memfd_create = 319, NR_copy_file_range = 326, NR_pwritev2 = 328, NR_openat2 = 437,
	NR_process_madvise = 440,
};
#define HAS_LEGACY_PATH_CALLS 1
#define RETURN_REGISTER(regs) 0
#elif defined(__aarch64__)
/* orig_x0 holds the first argument: x0 is overwritten with the result */
#define SYSCALL_ID(regs) ((u32)REGISTER(regs, syscallno))
#define ARG1(regs) REGISTER(regs, orig_x0)
#define ARG2(regs) REGISTER(regs, regs[1])
#define ARG3(regs) REGISTER(regs, regs[2])
#define ARG4(regs) REGISTER(regs, regs[3])
#define ARG5(regs) REGISTER(regs, regs[4])
/* the link register: where a function without a frame returns to */
#define RETURN_REGISTER(regs) REGISTER(regs, regs[30])
/* include/uapi/asm-generic/unistd.h */
enum {
	NR_mkdirat = 34, NR_unlinkat = 35, NR_ftruncate = 46, NR_fallocate = 47, NR_openat = 56, NR_write = 64,
	NR_writev = 66, NR_pwrite64 = 68, NR_pwritev = 70, NR_sendfile = 71, NR_splice = 76, NR_shmget = 194,
	NR_shmctl = 195, NR_shmat = 196, NR_shmdt = 197, NR_brk = 214, NR_munmap = 215, NR_mremap = 216,
	NR_mmap = 222, NR_madvise = 233, NR_memfd_create = 279, NR_copy_file_range = 285, NR_pwritev2 = 287,
	NR_openat2 = 437, NR_process_madvise = 440,
};
#else
#error "rtdebug knows the system call convention of x86-64 and arm64 only"
#endif

/* --- a function's arguments, where a uprobe stands at its entry --- */
#if defined(__x86_64__)
#define FUNCTION_ARG1(regs) ((regs)->di)
#define FUNCTION_ARG2(regs) ((regs)->si)
#define FUNCTION_ARG3(regs) ((regs)->dx)
#define FUNCTION_RESULT(regs) ((regs)->ax)
/* the return address lies on the stack, and is taken off it at the return */
#define RETURN_ADDRESS_BYTES 8
#define USER_REGISTERS struct pt_regs
#define INSTRUCTION(regs) ((regs)->ip)
#else
#define FUNCTION_ARG1(regs) ((regs)->regs[0])
#define FUNCTION_ARG2(regs) ((regs)->regs[1])
#define FUNCTION_ARG3(regs) ((regs)->regs[2])
#define FUNCTION_RESULT(regs) ((regs)->regs[0])
#define RETURN_ADDRESS_BYTES 0
#define USER_REGISTERS struct user_pt_regs
#define INSTRUCTION(regs) ((regs)->pc)
#endif

/* struct bpf_perf_event_data of include/uapi/linux/bpf_perf_event.h, which no BTF has */
#define SAMPLE_CONTEXT(name) struct name { USER_REGISTERS regs; u64 sample_period; u64 addr; }

/* --- reading user memory: by a name that bcc does not know. At each bpf_probe_read_user it reads all of
 * /proc/kallsyms, to see whether the kernel has it: a quarter of the compile time. Numbers: enum bpf_func_id of
 * include/uapi/linux/bpf.h; commit 6ae08ae3dea2 ("bpf: Add probe_read_{user, kernel} and probe_read_{user,
 * kernel}_str helpers"), in v5.5. --- */
static long (*read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*read_user_str)(void *to, u32 size, const void *from) = (void *)114;

/* --- 32-bit programs: exec sets the size of their address space; the thread flags for it move between kernels --- */
static __always_inline bool is_compat(struct task_struct *task)
{
	struct mm_struct *mm = KREAD(task, mm);

	return mm && KREAD(mm, task_size) <= (1UL << 32);
}

/* --- memory counters of a process --- */
enum { COUNTER_FILE, COUNTER_ANON, COUNTER_SWAP, COUNTER_SHMEM };   /* MM_FILEPAGES .. include/linux/mm_types_task.h */

static __always_inline u32 rss_pages(struct mm_struct *mm, u32 counter)
{
#ifdef HAS_TYPE_mm_rss_stat
	s64 pages = KREAD(mm, rss_stat.count[counter].counter);
#else
	/* commit f1a7941243c1 ("mm: convert mm's rss stats into percpu_counter"), in v6.2 */
	s64 pages = KREAD(mm, rss_stat[counter].count);
#endif
	return pages > 0 ? pages : 0;
}

#ifndef HAS_TASK_ARG_mark_victim
/* --- the process that has a pid in the host's pid namespace --- */
#define PID_TREE_DEPTH 6

/* The tree of pids (struct idr is a struct xarray since commit f32f004cddf8, in v4.20). The address of an inner node is
 * stored with 2 added: include/linux/xarray.h, xa_to_node(). */
static __always_inline struct task_struct *task_of_pid(u32 number)
{
	struct task_struct *current_task = (struct task_struct *)bpf_get_current_task();
	struct pid *pid = KREAD(current_task, thread_pid);
	struct pid_namespace *host = KREAD(pid, numbers[0].ns);
	u64 entry = (u64)KREAD(host, idr.idr_rt.xa_head);
	struct hlist_node *first;

#pragma unroll
	for (int depth = 0; depth < PID_TREE_DEPTH; depth++) {
		struct xa_node *node = (struct xa_node *)(entry - 2);
		u32 slots = sizeof(node->slots) / sizeof(node->slots[0]);

		if ((entry & 3) == 2)
			entry = (u64)KREAD(node, slots[(number >> KREAD(node, shift)) & (slots - 1)]);
	}
	pid = (struct pid *)entry;
	first = KREAD(pid, tasks[0].first);   /* PIDTYPE_PID */
	return first ? CONTAINER_OF(first, struct task_struct, pid_links[0]) : NULL;
}
#endif

/* --- the mapping an address lies in --- */
#ifdef HAS_FIELD_mm_struct__mm_mt
/* commit d4af56c5c7c6 ("mm: start tracking VMAs with maple tree"), in v6.1. Encoding of node pointers:
 * include/linux/maple_tree.h: type in bits 3..6, the node itself aligned to 256 bytes. */
#define MAPLE_DEPTH 6

static __always_inline struct vm_area_struct *mapping_at(struct mm_struct *mm, u64 address)
{
	u64 entry = (u64)KREAD(mm, mm_mt.ma_root);

#pragma unroll
	for (int depth = 0; depth < MAPLE_DEPTH; depth++) {
		u64 pivots[15] = {};
		u64 node = entry & ~0xffULL;
		u32 type = (entry >> 3) & 0xf;
		bool leaf = type == maple_leaf_64;
		u32 slot = 0, last;

		/* only the root says by its low bits whether it is a node (xa_is_node): below, the level says it */
		if (!entry || (depth == 0 && (entry & 3) != 2))
			return (struct vm_area_struct *)entry;
		if (type == maple_arange_64) {
			last = 9;
			bpf_probe_read_kernel(pivots, 9 * sizeof(u64), (void *)(node + 8));
		} else {
			last = 15;
			bpf_probe_read_kernel(pivots, sizeof(pivots), (void *)(node + 8));
		}
#pragma unroll
		for (int i = 0; i < 15; i++) {
			if (slot == i && i < last && pivots[i] && pivots[i] < address)
				slot = i + 1;
		}
		/* pivots follow the parent pointer, slots follow the pivots */
		bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(node + 8 + last * 8 + slot * 8));
		if (leaf)
			return (struct vm_area_struct *)entry;
	}
	return NULL;
}
#else
static __always_inline struct vm_area_struct *mapping_at(struct mm_struct *mm, u64 address)
{
	struct rb_node *node = KREAD(mm, mm_rb.rb_node);

	for (int depth = 0; depth < 40 && node; depth++) {
		struct vm_area_struct *vma = CONTAINER_OF(node, struct vm_area_struct, vm_rb);

		if (address < KREAD(vma, vm_start))
			node = KREAD(node, rb_left);
		else if (address >= KREAD(vma, vm_end))
			node = KREAD(node, rb_right);
		else
			return vma;
	}
	return NULL;
}
#endif

static __always_inline u64 mapping_start(struct vm_area_struct *vma) { return KREAD(vma, vm_start); }
static __always_inline u64 mapping_end(struct vm_area_struct *vma) { return KREAD(vma, vm_end); }

/* --- what a pidfd stands for --- */
static __always_inline struct pid *pid_of_pidfd_file(struct file *file)
{
#ifdef HAS_FIELD_pid__stashed
	/* commit cb12fd8e0dab ("pidfd: add pidfs"), in v6.9: the inode holds the pid, no longer the file */
	struct inode *inode = KREAD(file, f_inode);

	return KREAD(inode, i_private);
#else
	return KREAD(file, private_data);
#endif
}

/* --- tmpfs --- */
#define TMPFS_MAGIC 0x01021994

static __always_inline u64 tmpfs_free_inodes(struct shmem_sb_info *info)
{
#ifdef HAS_FIELD_shmem_sb_info__free_ispace
	/* commit e07c469e979d ("tmpfs: track free_ispace instead of free_inodes"), in v6.6: bytes, 1 KiB an inode */
	return KREAD(info, free_ispace) / 1024;
#else
	return KREAD(info, free_inodes);
#endif
}

#endif
