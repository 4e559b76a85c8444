package watched

import (
	"os"
	"syscall"
)

// memoryBase is a directory in memory that the account can enter, empty where TMPDIR asks for
// another, or where there is none with 4 GiB: room for data and for WAL, which is 1 GiB by default.
func memoryBase(as *account) string {
	const dir, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(dir, &fs) != nil ||
		fs.Bavail*uint64(fs.Bsize) < room || !as.canEnter(dir) {
		return ""
	}
	return dir
}
