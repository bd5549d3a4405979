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

// flipLinks makes the name args[0] alternately a directory and a link to one of the other arguments,
// until it is killed.
func flipLinks(_, _ string, args []string) {
	name, targets := args[0], args[1:]
	reportBegun()
	for i := 0; ; i = (i + 1) % len(targets) {
		// Another process may have removed either, or created the name.
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

// bombForks runs shells that multiply. When they fail, it starts new ones.
func bombForks(_, _ string, _ []string) {
	var ready, done sync.WaitGroup
	for range 8 { // start threads now, since this program dies if it needs one later and gets none
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

// takeMemory allocates as much memory as possible, repeatedly.
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

// fillDisk fills the directories args[1:], each until it is full or all have args[0] bytes together.
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

// floodOutput writes to stdout and stderr as fast as it can.
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

// An attack that takes resources reports "begun" when it has minTaken of them. It continues until
// there are no more, or it has maxTaken, so that a machine without limits does not suffer.
const (
	minTaken = 2000
	maxTaken = 10 * minTaken
)

// holdForever blocks until the program is killed.
func holdForever() {
	for {
		time.Sleep(time.Hour)
	}
}

// maxTerminals is the number of terminals that a process takes. The containers of an engine share a
// few thousand terminals of its machine, for which no engine has a limit, and other tests need some.
const maxTerminals = 200

// takeDescriptors takes descriptors of many types, in several processes.
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
		if ptys < maxTerminals {
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
		if all < minTaken && (all+n >= minTaken || n == 0) {
			reportBegun()
		}
		if all += n; n == 0 || all > maxTaken {
			holdForever()
		}
	}
}

// takeWatches takes inotify instances and watches.
func takeWatches(_, _ string, _ []string) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	for n := 0; ; n++ {
		fd, err := unix.InotifyInit1(0)
		if n == minTaken || n < minTaken && err != nil {
			reportBegun()
		}
		if err != nil || n > maxTaken {
			holdForever()
		}
		_, _ = unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS)
	}
}

// openConns are connections that remain open.
var openConns []net.Conn

// acceptSilently accepts connections to the port args[0] and never sends anything.
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
		openConns = append(openConns, c)
	}
}

// makeDeepTree makes args[1] nested directories in args[0], with the longest possible names, so that
// no path reaches the last one, and with files of unusual names. With args[2], some directories deny
// access.
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

// dialOut connects to the address args[0] repeatedly, over TCP and UDP, and holds the connections.
func dialOut(_, _ string, args []string) {
	for failed, said := 0, false; ; {
		for _, network := range []string{"tcp", "udp"} {
			c, err := net.DialTimeout(network, args[0], time.Second)
			if err != nil {
				failed++
				continue
			}
			_, _ = c.Write([]byte("x"))
			openConns = append(openConns, c)
		}
		if len(openConns) > maxTaken {
			holdForever()
		}
		if !said && (len(openConns) >= minTaken || failed >= 3) {
			said = true
			reportBegun()
		}
		if failed >= 3 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// stopProcesses stops all other processes.
func stopProcesses(_, _ string, _ []string) {
	for i := 0; ; i++ {
		_ = unix.Kill(-1, unix.SIGSTOP)
		if i == 10 {
			reportBegun()
		}
		time.Sleep(time.Millisecond)
	}
}
