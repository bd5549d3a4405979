package fsutil

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestWriteJSON(t *testing.T) {
	for name, write := range map[string]func(string, any) error{"WriteJSON": WriteJSON, "SyncJSON": SyncJSON} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			for _, v := range []any{[]string{"a", "longer than b"}, []string{"b"}} {
				must(t, write(path, v))
			}
			if got, err := os.ReadFile(path); string(got) != `["b"]` || err != nil {
				t.Errorf("file: %s, %v", got, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("mode %v, %v, want it for its owner only", info.Mode(), err)
			}
			if err := write(path, func() {}); err == nil {
				t.Error("a function was written")
			}
			must(t, os.MkdirAll(filepath.Join(dir, "taken", "x"), 0o755))
			if err := write(filepath.Join(dir, "taken"), 1); err == nil {
				t.Error("a directory was replaced")
			}
			if entries, err := os.ReadDir(dir); len(entries) != 2 || err != nil {
				t.Errorf("left: %v, %v, want the file and the directory", entries, err)
			}
		})
	}
}

func TestReplaceThatFails(t *testing.T) {
	dir := t.TempDir()
	path, failed := filepath.Join(dir, "file"), errors.New("no more to write")
	must(t, WriteFile(path, []byte("before")))
	err := Replace(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half of ")
		return cmp.Or(err, failed)
	})
	if got, readErr := os.ReadFile(path); err != failed || string(got) != "before" || readErr != nil {
		t.Errorf("Replace: %v; the file holds %q, %v", err, got, readErr)
	}
	if fileExists(path + Temporary) {
		t.Error("half a file is left")
	}
}

// A reader of a file that others replace gets the content of one writer.
func TestReplaceWhileOthersRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, WriteFile(path, []byte("0")))
	stop := make(chan struct{})
	var reading sync.WaitGroup
	for range 4 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if data, err := ReadFile(path); err != nil || len(data) != 1 {
					t.Errorf("read %q, %v", data, err)
					return
				}
			}
		})
	}
	for i := range 200 {
		if err := WriteFile(path, []byte{byte('0' + i%10)}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	reading.Wait()
}

func TestSync(t *testing.T) {
	dir := t.TempDir()
	if err := WriteFile(filepath.Join(dir, "file"), []byte("data")); err != nil {
		t.Fatal(err)
	}
	if err := Sync(dir); err != nil {
		t.Errorf("Sync: %v", err)
	}
	if err := Sync(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Sync of what is not there: %v", err)
	}
}

func TestIsFull(t *testing.T) {
	for err, want := range map[error]bool{
		&os.PathError{Op: "write", Err: syscall.ENOSPC}: true,
		errors.Join(syscall.EDQUOT):                     true,
		syscall.EIO:                                     false,
		nil:                                             false,
	} {
		if IsFull(err) != want {
			t.Errorf("IsFull(%v) is %v", err, !want)
		}
	}
}
