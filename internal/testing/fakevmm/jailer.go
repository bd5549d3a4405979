//go:build linux

package fakevmm

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Jailer runs a fake jailer with a whole command line and returns its exit code. Like the real one, it
// makes the jail, copies the program into it, changes root and user, and executes the program. It
// makes no devices and no cgroups. It does not change root for QEMU machines, which need files outside
// the jail.
func Jailer(args []string) int {
	flags := flag.NewFlagSet("jailer", flag.ContinueOnError)
	id := flags.String("id", "", "")
	program := flags.String("exec-file", "", "")
	uid := flags.Int("uid", -1, "")
	gid := flags.Int("gid", -1, "")
	base := flags.String("chroot-base-dir", "/srv/jailer", "")
	version := flags.Int("cgroup-version", 1, "")
	flags.String("parent-cgroup", "", "")
	var cgroups []string
	flags.Func("cgroup", "", func(s string) error { cgroups = append(cgroups, s); return nil })
	if err := flags.Parse(args[1:]); err != nil {
		return 1
	}
	name := filepath.Base(*program)
	root := filepath.Join(*base, name, *id, "root")
	err := os.MkdirAll(root, 0o700)
	for _, file := range []string{*program, filepath.Join(filepath.Dir(*program), scriptFile)} {
		if err == nil {
			var text []byte
			if text, err = os.ReadFile(file); err == nil {
				err = os.WriteFile(filepath.Join(root, filepath.Base(file)), text, 0o755)
			} else if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
	}
	var s Script
	if text, readErr := os.ReadFile(filepath.Join(root, scriptFile)); err == nil && readErr == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		err = errors.Join(os.Chown(root, *uid, *gid), os.Chdir(root))
	}
	if err == nil && s.Machine == nil {
		err = syscall.Chroot(".")
	}
	if err == nil {
		fmt.Printf("jailer: cgroups %v of version %d, pid %d\n", cgroups, *version, os.Getpid())
		err = errors.Join(syscall.Setgroups(nil), syscall.Setgid(*gid), syscall.Setuid(*uid))
	}
	if err == nil {
		argv := append([]string{"./" + name, "--id=" + *id, "--start-time-us=1", "--start-time-cpu-us=1"}, flags.Args()...)
		err = syscall.Exec(argv[0], argv, nil)
	}
	fmt.Fprintln(os.Stderr, "jailer:", err)
	return 1
}
