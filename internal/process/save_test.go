//go:build unix

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// saveAndLoad runs cmd to its end in a table, saves it and loads it again.
func saveAndLoad(t *testing.T, cmd *atoll.Command) (before, after atoll.ProcessStatus, loaded *Table, path string) {
	t.Helper()
	table := newTable(t)
	p := mustStart(t, table, cmd)
	mustWait(t, p)
	path = filepath.Join(t.TempDir(), "saved")
	if err := table.Save(path, p.ID()); err != nil {
		t.Fatalf("Save: %v", err)
	}
	loaded, err := Load(path)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return table.List()[0], loaded.List()[0], loaded, path
}

func TestLoadedIsAsItWas(t *testing.T) {
	for _, tt := range []struct {
		name, script   string
		limit          atoll.Bytes
		tty            *atoll.Size
		stdout, stderr string // what can still be read
		gap            string
	}{
		{name: "silent", script: "exit 3"},
		{name: "both", script: "echo out; echo err >&2; kill -TERM $$", stdout: "out\n", stderr: "err\n"},
		{name: "more than is kept", script: "seq 100; echo err >&2", limit: 5, stdout: "\n100\n", stderr: "err\n", gap: "stdout 0 287"},
		{name: "a full ring", script: "printf 12345", limit: 5, stdout: "12345"},
		{name: "a terminal", script: "echo out; echo err >&2", tty: &atoll.Size{Rows: 24, Cols: 80}, stdout: "out\r\nerr\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := shellCommand(tt.script)
			cmd.OutputLimit, cmd.TTY, cmd.Dir, cmd.User = tt.limit, tt.tty, "/", "somebody"
			before, after, table, _ := saveAndLoad(t, cmd)
			if !before.Started.Equal(after.Started) {
				t.Errorf("started %v, was %v", after.Started, before.Started)
			}
			before.Started, after.Started = time.Time{}, time.Time{}
			if !reflect.DeepEqual(after, before) {
				t.Errorf("loaded %+v (exit %v), saved %+v (exit %v)", after, after.Exit, before, before.Exit)
			}
			p, err := table.Get(before.ID)
			if err != nil {
				t.Fatalf("Get: %v", err)
			}
			if exit := mustWait(t, p); exit != *before.Exit {
				t.Errorf("exit %+v, was %+v", exit, *before.Exit)
			}
			var stdout, stderr bytes.Buffer
			var gap string
			err = p.Attach(t.Context(), &atoll.Attachment{Stdout: &stdout, Stderr: &stderr, Gap: func(s atoll.Stream, from, to int64) {
				gap += fmt.Sprint(s, " ", from, " ", to)
			}})
			if err != nil || stdout.String() != tt.stdout || stderr.String() != tt.stderr || gap != tt.gap {
				t.Errorf("Attach: %v, %q, %q, gap %q; want %q, %q, %q", err, &stdout, &stderr, gap, tt.stdout, tt.stderr, tt.gap)
			}
		})
	}
}

func TestLoadedIsReadFromOffsets(t *testing.T) {
	_, st, table, _ := saveAndLoad(t, shellCommand("echo one; echo two"))
	p, err := table.Get(st.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from int64
		want string
		err  error
	}{{0, "one\ntwo\n", nil}, {4, "two\n", nil}, {8, "", nil}, {atoll.FromNow, "", nil}, {9, "", atoll.ErrInvalid}} {
		for _, noFollow := range []bool{false, true} {
			var out bytes.Buffer
			err := p.Attach(t.Context(), &atoll.Attachment{Stdout: &out, StdoutFrom: tt.from, NoFollow: noFollow})
			if !errors.Is(err, tt.err) || out.String() != tt.want {
				t.Errorf("from %d: %q, %v; want %q, %v", tt.from, &out, err, tt.want, tt.err)
			}
		}
	}
}

func TestLoadedHasEnded(t *testing.T) {
	cmd := shellCommand("exit 0")
	cmd.TTY = &atoll.Size{Rows: 24, Cols: 80}
	_, st, table, path := saveAndLoad(t, cmd)
	if err := os.Remove(path); err != nil { // nothing of it is needed any longer
		t.Fatal(err)
	}
	p, err := table.Get(st.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, notExist := table.Get("other")
	_, exec := table.Start(t.Context(), "", shellCommand(""), startHost([]string{"/bin/true"}, false))
	for what, c := range map[string]struct{ got, want error }{
		"Signal":             {p.Signal(t.Context(), atoll.SIGKILL), atoll.ErrStopped},
		"Resize":             {atoll.Resize(t.Context(), p, *cmd.TTY), atoll.ErrStopped},
		"Attach with stdin":  {p.Attach(t.Context(), &atoll.Attachment{Stdin: bytes.NewReader([]byte("x"))}), nil},
		"Get of another one": {notExist, atoll.ErrNotExist},
		"Start":              {exec, atoll.ErrStopped},
		"Close":              {table.Close(), nil},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	if n := table.Running(); n != 0 {
		t.Errorf("%d are running", n)
	}
}

func TestSaveWhatCannotBe(t *testing.T) {
	table := newTable(t)
	cmd := shellCommand("read x")
	cmd.OpenStdin = true
	p := mustStart(t, table, cmd)
	path := filepath.Join(t.TempDir(), "saved")
	if err := table.Save(path, p.ID()); !errors.Is(err, atoll.ErrConflict) {
		t.Errorf("of one that runs: %v, want ErrConflict", err)
	}
	if err := table.Save(path, "other"); !errors.Is(err, atoll.ErrNotExist) {
		t.Errorf("of none: %v, want ErrNotExist", err)
	}
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load: %v, want fs.ErrNotExist", err)
	}
}

func TestLoadOfADamagedFile(t *testing.T) {
	_, _, _, path := saveAndLoad(t, shellCommand("echo out; echo err >&2"))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := []string{"\n", "{}\n", "null\n", `{"id":"x"}` + "\n"}
	for n := range whole {
		bad = append(bad, string(whole[:n]))
	}
	for _, stream := range []string{
		`{"written":1,"oldest":2}`, `{"written":-2,"oldest":-3}`, `{"written":9223372036854775807,"oldest":0}`,
		`{"written":-9223372036854775808,"oldest":9223372036854775807}`,
	} {
		bad = append(bad, `{"id":"x","exit":{"code":0},"stdout":`+stream+"}\nabc")
	}
	for _, data := range bad {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if table, err := Load(path); err == nil {
			t.Errorf("Load of %q: %+v, want an error", data, table.List())
		}
	}
}

func TestMainProcessOutlivesOthers(t *testing.T) {
	table := newTable(t)
	table.EndedOutput = 1000
	cmd := shellCommand("head -c 2000 /dev/zero")
	p, err := table.Start(t.Context(), atoll.MainProcess, cmd, startHost(cmd.Args, false))
	if err != nil {
		t.Fatal(err)
	}
	mustWait(t, p)
	for range keepEnded + 1 {
		mustWait(t, mustStart(t, table, shellCommand("head -c 100 /dev/zero")))
	}
	var out bytes.Buffer
	p, err = table.Get(atoll.MainProcess)
	if err == nil {
		err = p.Attach(t.Context(), &atoll.Attachment{Stdout: &out})
	}
	if err != nil || out.Len() != 2000 {
		t.Errorf("%d bytes, %v, want 2000", out.Len(), err)
	}
}
