//go:build unix

package watched

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that programs run as, other than this process's own.
type account struct {
	name     string
	uid, gid int
}

// unprivileged returns the user to run servers as, or nil if this process's own will do.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		return &account{name, uid, gid}, errors.Join(err1, err2)
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// canEnter tries it: permissions of every parent, access lists and mount options have a say.
func (a *account) canEnter(dir string) bool {
	if a == nil {
		return true
	}
	cmd := exec.Command("/bin/sh", "-c", `cd -- "$0"`, dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
	return cmd.Run() == nil
}
