//go:build unix

package wsl2_test

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf16"

	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// A script lists the faults of a fake, in a file beside the program.
type script struct {
	Old    bool              // it knows UTF-16 only, and no --version
	Fail   map[string]string // verbs that fail, and the code of the error
	Slow   map[string]int    // how many milliseconds verbs take
	Boot   int               // how many milliseconds a guest takes to speak
	Silent bool              // the guest never does
	Noise  string            // what is on its stdout before
	Exit   int               // the guest's code, when the port for that is dialled
	Deaf   bool              // the guest does not end with its stdin
	Off    bool              // it has a port to end it
}

const (
	scriptFile   = "script.json"
	registryFile = "registry.json"
	guestPath    = "/sbin/guest"
	guestPort    = 52
	echoPort     = 7
	offPort      = 50
	diePort      = 13
)

// A distribution is one that the fake knows, in a file beside it.
type distribution struct {
	Name, Dir string
	PID       int // of what runs in it
}

// fakeWSL is the program: its command line, output and codes are like the real one's, a
// distribution is a directory, and in it runs the real guest.
func fakeWSL(args []string) int {
	w := &fakeProgram{home: filepath.Dir(args[0])}
	if text, err := os.ReadFile(filepath.Join(w.home, scriptFile)); err == nil {
		if err := json.Unmarshal(text, &w.script); err != nil {
			panic(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(w.home, registryFile)); err == nil {
		if err := json.Unmarshal(text, &w.all); err != nil {
			panic(err)
		}
	}
	return w.run(args[1:])
}

type fakeProgram struct {
	home   string
	script script
	all    []distribution
}

// say prints as wsl.exe does.
func (w *fakeProgram) say(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\r\n")
	if !w.script.Old && os.Getenv("WSL_UTF8") == "1" {
		fmt.Print(text)
		return
	}
	for _, unit := range utf16.Encode([]rune(text)) {
		os.Stdout.Write([]byte{byte(unit), byte(unit >> 8)})
	}
}

// fail prints an error in somebody's language, and the code that is in all.
func (w *fakeProgram) fail(code string) int {
	w.say("Das hat nicht geklappt – schade.\nFehlercode: Wsl/Service/%s\n", code)
	return 255 // -1, of which Unix has one byte
}

func (w *fakeProgram) save() {
	text, err := json.Marshal(w.all)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.home, registryFile), text, 0o600)
	}
	if err != nil {
		panic(err)
	}
}

func (w *fakeProgram) find(name string) int {
	return slices.IndexFunc(w.all, func(d distribution) bool { return strings.EqualFold(d.Name, name) })
}

func (w *fakeProgram) run(args []string) int {
	time.Sleep(time.Duration(w.script.Slow[args[0]]) * time.Millisecond)
	if code := w.script.Fail[args[0]]; code != "" {
		return w.fail(code)
	}
	switch args[0] {
	case "--version":
		if w.script.Old {
			w.say("Invalid command line option: --version\n")
			return 255
		}
		w.say("WSL version: 2.4.13.0\nKernel version: 5.15.167.4-1\n")
	case "--status":
		w.say("Default Version: 2\n")
	case "--list":
		if len(w.all) == 0 {
			w.say("Windows Subsystem for Linux has no installed distributions.\n")
			return 255
		}
		for _, d := range w.all {
			w.say("%s\n", d.Name)
		}
	case "--import":
		return w.load(args[1:])
	case "--terminate":
		i := w.find(args[1])
		if i < 0 {
			return w.fail("WSL_E_DISTRO_NOT_FOUND")
		}
		w.terminate(i)
	case "--unregister":
		i := w.find(args[1])
		if i < 0 {
			return w.fail("WSL_E_DISTRO_NOT_FOUND")
		}
		w.terminate(i)
		if err := os.RemoveAll(w.all[i].Dir); err != nil {
			panic(err)
		}
		w.all = slices.Delete(w.all, i, i+1)
		w.save()
	case "--distribution":
		return w.enter(args)
	default:
		return w.fail("E_INVALIDARG")
	}
	return 0
}

func (w *fakeProgram) terminate(i int) {
	if pid := w.all[i].PID; pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		w.all[i].PID = 0
		w.save()
	}
}

// load is --import NAME DIR - --version 2.
func (w *fakeProgram) load(args []string) int {
	if len(args) != 5 || args[2] != "-" || args[3] != "--version" || args[4] != "2" {
		return w.fail("E_INVALIDARG")
	}
	if w.find(args[0]) >= 0 {
		return w.fail("ERROR_ALREADY_EXISTS")
	}
	if err := os.Mkdir(args[1], 0o700); err != nil {
		return w.fail("ERROR_FILE_EXISTS")
	}
	for r := tar.NewReader(os.Stdin); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		path := filepath.Join(args[1], "root", filepath.Clean("/"+h.Name))
		switch {
		case err != nil:
		case h.Typeflag == tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case h.Typeflag == tar.TypeReg:
			var text []byte
			if text, err = io.ReadAll(r); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, h.FileInfo().Mode()))
			}
		}
		if err != nil {
			os.RemoveAll(args[1])
			return w.fail("WSL_E_IMPORT_FAILED")
		}
	}
	w.all = append(w.all, distribution{Name: args[0], Dir: args[1]})
	w.save()
	w.say("The operation completed successfully.\n")
	return 0
}

// enter is --distribution NAME --user root --cd / --exec PROGRAM...
func (w *fakeProgram) enter(args []string) int {
	if len(args) < 8 || !slices.Equal(args[2:7], []string{"--user", "root", "--cd", "/", "--exec"}) || os.Getenv("WSLENV") != "" {
		return w.fail("E_INVALIDARG")
	}
	i := w.find(args[1])
	if i < 0 {
		return w.fail("WSL_E_DISTRO_NOT_FOUND")
	}
	root := filepath.Join(w.all[i].Dir, "root")
	if _, err := os.Stat(filepath.Join(root, args[7])); err != nil {
		fmt.Fprintf(os.Stderr, "<3>WSL (9) ERROR: CreateProcessCommon: execvpe(%s) failed: No such file or directory\n", args[7])
		return 1
	}
	w.all[i].PID = os.Getpid()
	w.save()
	fmt.Fprintln(os.Stderr, "guest begins:", args[7:])
	time.Sleep(time.Duration(w.script.Boot) * time.Millisecond)
	fmt.Print(w.script.Noise)
	if w.script.Silent {
		io.Copy(io.Discard, os.Stdin)
		return 0
	}
	err := mux.Guest(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}, func(s *mux.Session) { serveGuest(s, root, w.script) })
	if w.script.Deaf {
		time.Sleep(time.Hour)
	}
	if !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "guest:", err)
		return 1
	}
	return 0
}

// serveGuest plays a guest on its session.
func serveGuest(s *mux.Session, root string, script script) {
	l := s.Listen()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func(conn net.Conn) {
			defer conn.Close()
			port, err := mux.Asked(conn, testenv.Scale(10*time.Second))
			if err != nil || port != guestPort && port != echoPort && port != diePort && (port != offPort || !script.Off) {
				return // nothing listens
			}
			if err := mux.Grant(conn, port); err != nil {
				return
			}
			if port == diePort {
				fmt.Fprintln(os.Stderr, "told to end")
				os.Exit(script.Exit)
			}
			if port == offPort {
				conn.Close()
				time.Sleep(50 * time.Millisecond)
				os.Exit(0)
			}
			if port == echoPort {
				io.Copy(conn, conn)
				return
			}
			if err := guest.Serve(conn, dirfs.Options{Workdir: root, UID: -1, GID: -1}); err != nil {
				fmt.Fprintln(os.Stderr, "guest:", err)
			}
		}(conn)
	}
}
