package devpg

import (
	"os"
	"syscall"
)

// A server in memory has room for its data and its WAL, which is 1 GiB at most by default.
const (
	memoryFiles = "/dev/shm"
	memoryRoom  = 4 << 30
)

// memoryBase returns a directory in memory that the servers' user can enter, empty where there is none
// with room, or where TMPDIR asks for another.
func memoryBase(as *account) string {
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memoryFiles, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryRoom {
		return ""
	}
	if as != nil && !canEnter(as, memoryFiles) {
		return ""
	}
	return memoryFiles
}
