//go:build unix

package vz_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/vm/vz"
)

// sink keeps what is written to it.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *sink) Close() error { return nil }

func (s *sink) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Len()
}

// A machine's output arrives completely and in order, and its own file takes no space for the part
// that has arrived.
func TestFollow(t *testing.T) {
	for _, mode := range []int{os.O_TRUNC, os.O_APPEND} {
		path := filepath.Join(t.TempDir(), "console")
		to := &sink{}
		stop := vz.Follow(path, to)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|mode, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		for i := range 10 {
			chunk := bytes.Repeat([]byte{byte('a' + i)}, 1<<20)
			want.Write(chunk)
			if _, err := io.Copy(f, bytes.NewReader(chunk)); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); to.len() < want.Len(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d bytes have arrived", to.len(), want.Len())
				}
			}
		}
		_, _ = f.WriteString("the end")
		want.WriteString("the end")
		stop()
		f.Close()
		if !bytes.Equal(to.buf.Bytes(), want.Bytes()) {
			t.Errorf("%d bytes have arrived, not the %d that were written", to.buf.Len(), want.Len())
		}
		if space := used(t, path); space > 6<<20 {
			t.Errorf("the file still takes %d bytes", space)
		}
	}
}

// Nothing is lost while the space is freed of a file that is written without a pause.
func TestFollowBusyWriter(t *testing.T) {
	for _, mode := range []int{os.O_TRUNC, os.O_APPEND} {
		path := filepath.Join(t.TempDir(), "console")
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|mode, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		to := &sink{}
		stop := vz.Follow(path, to)
		var want bytes.Buffer
		for i := range 2000 {
			line := fmt.Appendf(nil, "%032768d\n", i)
			want.Write(line)
			if _, err := f.Write(line); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		f.Close()
		if !bytes.Equal(to.buf.Bytes(), want.Bytes()) {
			t.Errorf("%d bytes have arrived, not the %d that were written", to.buf.Len(), want.Len())
		}
	}
}

// used returns the space that a file takes, in bytes.
func used(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
