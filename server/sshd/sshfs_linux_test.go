package sshd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Programs create and change files on a mounted sandbox as on a disk.
func TestSSHFS(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Program("sshfs", "sshfs"), testenv.Program("git", "git"))
	if fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("the kernel has no FUSE: %v", err)
	} else {
		fuse.Close()
	}
	r := newRig(t, providers["local"](t), nil)
	ssh := openSSH(t, r)("ssh")
	dir := filepath.Join(ssh.Dir, "mnt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount := exec.CommandContext(t.Context(), "sshfs", "-f", "-o", "ssh_command="+strings.Join(ssh.Args, " "), "web@127.0.0.1:", dir)
	var said bytes.Buffer
	mount.Stdout, mount.Stderr, mount.Env = &said, &said, ssh.Env
	if err := mount.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("fusermount3", "-u", "-z", dir).Run() // fails if it was not mounted
		_ = mount.Wait()
	})
	outside, err := os.Stat(ssh.Dir)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sandbox is mounted", func() bool {
		inside, err := os.Stat(dir)
		return err == nil && deviceOf(inside) != deviceOf(outside)
	})
	script := exec.CommandContext(t.Context(), "sh", "-e", "-c", `
		echo new > n; cp n copy; sed -i s/new/old/ n; mv n moved; ln -s moved link
		(umask 377; echo sealed > sealed); chmod 640 copy; touch -d 2001-02-03 copy
		exec 3>>log; echo one >&3; mv log renamed; echo two >&3; rm -f none; truncate -s 3 copy
		git init -q repo; cd repo; echo a > a; git add a; git -c user.name=n -c user.email=e commit -q -m first; git fsck; cd ..
		cat link copy sealed renamed; git -C repo log --format=%s; df . >/dev/null`)
	script.Dir = dir
	script.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	stdout, stderr, code := runCommand(script)
	if want := "old\nnewsealed\none\ntwo\nfirst\n"; stdout != want || code != 0 {
		t.Errorf("the script printed %q, want %q; %q, code %d; sshfs: %s", stdout, want, stderr, code, said.String())
	}
	if got := r.fileContent(t, "renamed"); got != "one\ntwo\n" {
		t.Errorf("inside, the log is %q", got)
	}
}

// deviceOf returns the device of a file.
func deviceOf(info os.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Dev }
