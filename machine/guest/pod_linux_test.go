package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A waiting guest gets its configuration once, also if Tell comes first, or its stream does not
// end.
func TestTold(t *testing.T) {
	self := filepath.Join(t.TempDir(), programFile)
	told := make(chan error, 1)
	more, end := make(chan string), make(chan struct{})
	go func() {
		told <- Tell(self, readerFunc(func(b []byte) (int, error) {
			select {
			case text := <-more:
				return copy(b, text), nil
			case <-end:
				return 0, errors.New("nobody asks for more")
			}
		}))
	}()
	text := `{"id": "` + strings.Repeat("0", 200<<10) + `"}` // more than a pipe holds
	go func() {
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 512)
			more <- rest[:n]
			rest = rest[n:]
		}
	}()
	got, err := Told(self)
	if err != nil || got != text {
		t.Errorf("it got %d bytes of %d, %v", len(got), len(text), err)
	}
	if err := <-told; err != nil {
		t.Errorf("Tell: %v", err)
	}
	close(end)
	if _, err := os.Stat(filepath.Join(filepath.Dir(self), configPipe)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is still a pipe: %v", err)
	}
}

// Where there are several users, none but root can put another program in the guest's place.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Install(dir); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, programFile))
	if err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("the program: %v, %v", st, err)
	}
	if st, err = os.Stat(dir); err != nil || os.Geteuid() == 0 && st.Mode().Perm() != 0o755 {
		t.Errorf("its directory: %v, %v", st.Mode(), err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
