/* SPDX-License-Identifier: GPL-2.0-or-later */
/* POSIX shared memory, memfds and SysV segments, by the system calls behind whatever the C library calls them. */

#ifndef O_CREAT
#define O_WRONLY 01
#define O_CREAT 0100
#define O_TRUNC 01000
#endif
#define AT_FDCWD -100
/* include/linux/fs.h; commit 73a09dd94377 ("introduce FMODE_CREATED"), in v4.19 */
#define FILE_WAS_CREATED 0x100000

/* What a call on a file of shared memory said. */
struct shm_call {
	struct file *file;        /* the file it got or worked on; NULL when there is none */
	const char *user_path;
	u64 length_bytes;
	s64 ret;
	s32 directory_fd;
	u32 flags;
	u32 mode;
	u32 event;
};

static __always_inline bool starts_with_dev_shm(const char *path)
{
	const char prefix[] = "/dev/shm/";

#pragma unroll
	for (int i = 0; i < 9; i++)
		if (path[i] != prefix[i])
			return false;
	return true;
}

/* The directory in a /dev/shm where a relative path begins: a descriptor's, or the working directory; else NULL. */
static __always_inline struct dentry *begins_in_shm(s32 directory_fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fs_struct *fs = KREAD(task, fs);
	struct file *file = directory_fd == AT_FDCWD ? NULL : file_of(directory_fd);
	const struct path *path = file ? &file->f_path : &fs->pwd;

	if ((directory_fd != AT_FDCWD && !file) || !is_shm_path(path))
		return NULL;
	return KREAD(path, dentry);
}

static __always_inline void read_folders(struct shm_file_event *e, struct dentry *folder)
{
	struct dentry *above = KREAD(folder, d_parent);

	read_name(e->parent, sizeof(e->parent), folder);
	read_name(e->grandparent, sizeof(e->grandparent), above);
	e->deeper = !is_root(KREAD(above, d_parent));
}

static __always_inline void emit_shm_file(void *ctx, struct config *cfg, struct shm_call *call)
{
	struct shm_file_event *e;
	bool memfd = false;

	if (!wants(cfg, call->event) || !comm_matches(cfg))
		return;
	if (call->file) {
		if (call->event == EVENT_MEMFD_CREATE)
			memfd = true;
		else if (call->event == EVENT_FTRUNCATE)
			memfd = is_memfd(call->file);
		if (!memfd && (!is_regular(call->file) || !is_shm_path(&call->file->f_path)))
			return;
	}
	e = reserve_event(call->event);
	if (!e)
		return;
	fill_header(&e->header, call->event);
	e->ret = call->ret;
	e->inode_id = 0;
	e->length_bytes = call->length_bytes;
	e->device_id = 0;
	e->flags = call->flags;
	e->mode = call->mode;
	e->created = 0;
	e->memfd = memfd;
	e->user_path = 0;
	e->stack_id = call_stack_id(ctx, cfg);
	e->deeper = 0;
	e->name[0] = e->parent[0] = e->grandparent[0] = 0;
	if (call->file) {
		struct dentry *dentry = KREAD(call->file, f_path.dentry);
		struct inode *inode = KREAD(call->file, f_inode);

		e->inode_id = KREAD(inode, i_ino);
		e->device_id = device_of(super_block_of(inode));
		e->created = memfd || (KREAD(call->file, f_mode) & FILE_WAS_CREATED) != 0;
		if (call->event == EVENT_SHM_OPEN)
			e->length_bytes = KREAD(inode, i_size);
		else if (call->event == EVENT_FTRUNCATE)
			e->created = 0;
		if (memfd) {
			read_memfd_name(e->name, sizeof(e->name), dentry);
		} else {
			read_name(e->name, sizeof(e->name), dentry);
			read_folders(e, KREAD(dentry, d_parent));
		}
	} else {
		long length = read_user_str(e->name, sizeof(e->name), call->user_path);
		bool named = length > 9 && starts_with_dev_shm(e->name);
		struct dentry *folder = NULL;

		e->user_path = 1;
		if (length > 1 && e->name[0] != '/' && call->event != EVENT_MEMFD_CREATE)
			folder = begins_in_shm(call->directory_fd);
		if (folder) {
			read_folders(e, folder);
		} else if (!named && call->event != EVENT_MEMFD_CREATE) {
			events.ringbuf_discard(e, BPF_RB_NO_WAKEUP);
			return;
		}
	}
	events.ringbuf_submit(e, 0);
}

/* The size of the System V segment that is attached at an address; its file has just that length (ipc/shm.c: newseg). */
static __always_inline u64 segment_bytes(u64 address)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct vm_area_struct *vma = mapping_at(KREAD(task, mm), address);
	struct file *file = KREAD(vma, vm_file);
	struct inode *inode = KREAD(file, f_inode);

	return KREAD(inode, i_size);
}

static __always_inline void emit_sysv(void *ctx, struct config *cfg, struct pt_regs *regs, u32 id, s64 ret)
{
	u32 event = id == NR_shmget ? EVENT_SHMGET : id == NR_shmat ? EVENT_SHMAT :
		    id == NR_shmdt ? EVENT_SHMDT : EVENT_SHMCTL;
	struct sysv_event *e;

	if (!wants(cfg, event) || !comm_matches(cfg))
		return;
	e = reserve_event(event);
	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	fill_header(&e->header, event);
	e->ret = ret;
	e->shm_id = -1;
	e->stack_id = call_stack_id(ctx, cfg);
	switch (event) {
	case EVENT_SHMGET:
		e->key = ARG1(regs);
		e->length_bytes = ARG2(regs);
		e->flags = ARG3(regs);
		if (ret >= 0)
			e->shm_id = ret;
		break;
	case EVENT_SHMAT:
		e->shm_id = ARG1(regs);
		e->address = failed(ret) ? ARG2(regs) : ret;
		e->length_bytes = failed(ret) ? 0 : segment_bytes(ret);
		e->flags = ARG3(regs);
		break;
	case EVENT_SHMDT:
		e->address = ARG1(regs);
		break;
	default:
		e->shm_id = ARG1(regs);
		e->command = ARG2(regs);
	}
	events.ringbuf_submit(e, 0);
}

static __always_inline void on_shm_call(void *ctx, struct config *cfg, struct pt_regs *regs, u32 id, s64 ret)
{
	struct shm_call call = { .ret = ret, .directory_fd = AT_FDCWD };

	switch (id) {
	case NR_shmget:
	case NR_shmat:
	case NR_shmdt:
	case NR_shmctl:
		emit_sysv(ctx, cfg, regs, id, ret);
		return;
	case NR_openat:
		call.event = EVENT_SHM_OPEN;
		call.directory_fd = ARG1(regs);
		call.user_path = (const char *)ARG2(regs);
		call.flags = ARG3(regs);
		call.mode = ARG4(regs);
		break;
	case NR_openat2: {
		/* struct open_how, include/uapi/linux/openat2.h */
		u64 how[2] = {};

		read_user(how, sizeof(how), (void *)ARG3(regs));
		call.event = EVENT_SHM_OPEN;
		call.directory_fd = ARG1(regs);
		call.user_path = (const char *)ARG2(regs);
		call.flags = how[0];
		call.mode = how[1];
		break;
	}
#ifdef HAS_LEGACY_PATH_CALLS
	case NR_open:
		call.event = EVENT_SHM_OPEN;
		call.user_path = (const char *)ARG1(regs);
		call.flags = ARG2(regs);
		call.mode = ARG3(regs);
		break;
	case NR_creat:
		call.event = EVENT_SHM_OPEN;
		call.user_path = (const char *)ARG1(regs);
		call.flags = O_CREAT | O_WRONLY | O_TRUNC;
		call.mode = ARG2(regs);
		break;
	case NR_unlink:
		call.event = EVENT_SHM_UNLINK;
		call.user_path = (const char *)ARG1(regs);
		break;
#endif
	case NR_unlinkat:
		call.event = EVENT_SHM_UNLINK;
		call.directory_fd = ARG1(regs);
		call.user_path = (const char *)ARG2(regs);
		break;
	case NR_ftruncate:
		call.event = EVENT_FTRUNCATE;
		call.file = file_of(ARG1(regs));
		call.length_bytes = ARG2(regs);
		if (!call.file)
			return;
		break;
	case NR_memfd_create:
		call.event = EVENT_MEMFD_CREATE;
		call.user_path = (const char *)ARG1(regs);
		call.flags = ARG2(regs);
		if (ret >= 0)
			call.file = file_of(ret);
		break;
	default:
		return;
	}
	if (call.event == EVENT_SHM_OPEN && ret >= 0) {
		call.file = file_of(ret);
		if (!call.file)
			return;
	}
	emit_shm_file(ctx, cfg, &call);
}
