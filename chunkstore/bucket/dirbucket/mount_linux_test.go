package dirbucket_test

import "syscall"

func mountTmpfs(dir string) error { return syscall.Mount("granarytest", dir, "tmpfs", 0, "size=1m") }

func unmount(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }
