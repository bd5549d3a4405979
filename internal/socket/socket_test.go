//go:build unix

package socket

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestPair(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if _, err := ours.Write([]byte("there")); err != nil {
		t.Fatal(err)
	}
	if err := ours.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(theirs); string(data) != "there" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
	if _, err := theirs.WriteString("back"); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if data, err := io.ReadAll(ours); string(data) != "back" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
}

// No process inherits an end that it was not given, whichever way the pair was made.
func TestPairIsNotInherited(t *testing.T) {
	for name, make := range map[string]func(int) ([2]int, error){"this system's": makePair, "other systems'": makePairLocked} {
		fds, err := make(syscall.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
		defer ours.Close()
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		if data, err := io.ReadAll(ours); len(data) > 0 || err != nil { // waits while another process has the other end
			t.Errorf("%s: read %q, %v", name, data, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// A socket can be reached however long its path is, and no link is left behind.
func TestShort(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for name, way := range map[string]func(string, func(string) error) error{"this system's": Short, "other systems'": useLink} {
		for _, path := range []string{filepath.Join(dir, "s"), "s"} {
			var short string
			var l *net.UnixListener
			err := way(path, func(s string) (err error) {
				short = s
				l, err = net.ListenUnix("unix", &net.UnixAddr{Name: s, Net: "unix"})
				return err
			})
			if err != nil || len(short) > maxAddressLen {
				t.Fatalf("%s: listen on %s (%d bytes): %v", name, short, len(short), err)
			}
			l.SetUnlinkOnClose(false)
			if err := way(path, dialUnix); err != nil {
				t.Errorf("%s: dial: %v", name, err)
			}
			l.Close()
			if _, err := os.Lstat(filepath.Dir(short)); path != short && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s is still there: %v", name, short, err)
			}
			if err := os.Remove(path); err != nil { // the socket is at path
				t.Error(err)
			}
		}
		if err := way(filepath.Join(dir, "nothing", "s"), dialUnix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: dial in no directory: %v", name, err)
		}
	}
}

func dialUnix(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	return conn.Close()
}
