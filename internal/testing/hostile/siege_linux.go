package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// flipLinks makes the name args[0] by turns a directory and a link to each of the
// other arguments, until it is killed.
func flipLinks(_, _ string, args []string) {
	name, targets := args[0], args[1:]
	reportBegun()
	for i := 0; ; i = (i + 1) % len(targets) {
		// Others may have removed either, or made the name anew.
		dir, link := name+".dir", name+".link"
		_ = os.Mkdir(dir, 0o755)
		_ = os.Remove(link)
		_ = os.Symlink(targets[i], link)
		for _, at := range []string{dir, link} {
			_ = os.RemoveAll(name)
			_ = os.Rename(at, name)
			time.Sleep(50 * time.Microsecond)
			_ = os.Rename(name, at)
		}
	}
}

// bombForks has shells multiply. They end when they cannot, and others take their places.
func bombForks(_, _ string, _ []string) {
	var ready, done sync.WaitGroup
	for range 8 { // threads for this program, which dies when it needs one and there is none
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			ready.Wait()
		})
	}
	done.Wait()
	reportBegun()
	for {
		p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "f() { f & f & }; f"}, &os.ProcAttr{})
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = p.Wait()
	}
}

// takeMemory takes what there is, again and again.
func takeMemory(marker, text string, _ []string) {
	reportBegun()
	for {
		var all []*exec.Cmd
		for range 3 {
			cmd := exec.Command("/proc/self/exe", marker, text, "eat")
			if cmd.Start() == nil {
				all = append(all, cmd)
			}
		}
		for _, cmd := range all {
			_ = cmd.Wait()
		}
	}
}

// eatMemory allocates and touches up to 2 GiB.
func eatMemory(_, _ string, _ []string) {
	const step = 1 << 20
	var all [][]byte
	for range 2 << 10 {
		b := make([]byte, step)
		for i := 0; i < step; i += 4 << 10 {
			b[i] = 1
		}
		all = append(all, b)
	}
	fmt.Println(len(all))
}

// fillDisk fills the directories args[1:], each until there is no more room, or there
// are args[0] bytes in all of them.
func fillDisk(_, _ string, args []string) {
	limit, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		panic(err)
	}
	b := bytes.Repeat([]byte("filler--"), 128<<10)
	var all int64
	written := map[string]int64{}
	for _, dir := range args[1:] {
		f, err := os.Create(filepath.Join(dir, "atoll-filler"))
		for err == nil && all <= limit {
			var n int
			n, err = f.Write(b)
			written[dir] += int64(n)
			all += int64(n)
		}
	}
	if all > limit {
		reportEscape("%d bytes were written where %d may be: %v", all, limit, written)
	}
}

// floodOutput prints as fast as it can, on both sides.
func floodOutput(_, _ string, _ []string) {
	reportBegun()
	b := []byte(strings.Repeat("flood\n", 10<<10))
	go func() {
		for {
			_, _ = os.Stderr.Write(b)
		}
	}()
	for {
		_, _ = os.Stdout.Write(b)
	}
}

// enough is how many of what an attack takes are worth a look at the others. It goes on
// until there are no more, or so many that a machine without limits could suffer.
const (
	enough = 2000
	most   = 10 * enough
)

// holdForever keeps what there is until the program is killed.
func holdForever() {
	for {
		time.Sleep(time.Hour)
	}
}

// terminals is how many of them a process takes. The containers of an engine share those of
// its machine, a few thousand, which no engine has a limit for: other tests need some.
const terminals = 200

// takeDescriptors takes descriptors of all sorts, by several processes.
func takeDescriptors(marker, text string, args []string) {
	if len(args) == 0 {
		for range 4 {
			if err := exec.Command("/proc/self/exe", marker, text, "handles", "child").Start(); err != nil {
				break
			}
		}
	}
	ptys := 0
	for all := 0; ; {
		n := 0
		if ptys < terminals {
			if _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); err == nil {
				ptys++
				n++
			}
		}
		if fds := make([]int, 2); unix.Pipe(fds) == nil {
			n++
			_, _ = unix.Write(fds[1], make([]byte, 4<<10))
		}
		if _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); err == nil {
			n++
		}
		for _, open := range []func() (int, error){
			func() (int, error) { return unix.EpollCreate1(0) },
			func() (int, error) { return unix.Eventfd(0, 0) },
			func() (int, error) { return unix.Open("/proc/self/status", unix.O_RDONLY, 0) },
			func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0) },
		} {
			if _, err := open(); err == nil {
				n++
			}
		}
		if all < enough && (all+n >= enough || n == 0) {
			reportBegun()
		}
		if all += n; n == 0 || all > most {
			holdForever()
		}
	}
}

// takeWatches takes all that there is to watch files with.
func takeWatches(_, _ string, _ []string) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	for n := 0; ; n++ {
		fd, err := unix.InotifyInit1(0)
		if n == enough || n < enough && err != nil {
			reportBegun()
		}
		if err != nil || n > most {
			holdForever()
		}
		_, _ = unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS)
	}
}

// kept are connections that are to stay open.
var kept []net.Conn

// acceptSilently accepts connections to the port args[0] and keeps them, without a word.
func acceptSilently(_, _ string, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
	if err != nil {
		panic(err)
	}
	reportBegun()
	for {
		c, err := l.Accept()
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		kept = append(kept, c)
	}
}

// makeDeepTree makes in args[0] directories so deep that no name leads to the last, of the
// longest names that there are, with as long ones of files; with args[2] there are
// some that nobody may enter.
func makeDeepTree(_, _ string, args []string) {
	if err := os.Chdir(args[0]); err != nil {
		panic(err)
	}
	depth, err := strconv.Atoi(args[1])
	if err != nil {
		panic(err)
	}
	long := strings.Repeat("\xff", 255)
	for i := range depth {
		for _, name := range []string{"\n", "-rf", "*", long[:254]} {
			if i%50 == 0 {
				_ = os.WriteFile(name, nil, 0o600)
			}
		}
		if i%50 == 0 && len(args) > 2 {
			_ = os.Mkdir("closed", 0o700)
			_ = os.WriteFile("closed/file", nil, 0)
			_ = os.Symlink("..", "closed/loop")
			_ = os.Chmod("closed", 0)
		}
		err := os.Mkdir(long, 0o700)
		if err == nil {
			err = unix.Chdir(long)
		}
		if err != nil {
			if !errors.Is(err, unix.ENAMETOOLONG) {
				panic(err)
			}
			break
		}
	}
}

// dialOut connects to the address args[0] again and again, over TCP and UDP, and keeps
// what it gets.
func dialOut(_, _ string, args []string) {
	for failed, said := 0, false; ; {
		for _, network := range []string{"tcp", "udp"} {
			c, err := net.DialTimeout(network, args[0], time.Second)
			if err != nil {
				failed++
				continue
			}
			_, _ = c.Write([]byte("x"))
			kept = append(kept, c)
		}
		if len(kept) > most {
			holdForever()
		}
		if !said && (len(kept) >= enough || failed >= 3) {
			said = true
			reportBegun()
		}
		if failed >= 3 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// stopProcesses stops all others.
func stopProcesses(_, _ string, _ []string) {
	for i := 0; ; i++ {
		_ = unix.Kill(-1, unix.SIGSTOP)
		if i == 10 {
			reportBegun()
		}
		time.Sleep(time.Millisecond)
	}
}
