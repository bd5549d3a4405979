package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

func TestExitCode(t *testing.T) {
	tests := []struct {
		err                error
		wantRun, wantOther int
	}{
		{nil, 0, 0},
		{exitError(3), 3, 3},
		{fmt.Errorf("wrapped: %w", exitError(7)), 7, 7},
		{asExit(atoll.Exit{Code: 0}), 0, 0},
		{asExit(atoll.Exit{Code: 124, TimedOut: true}), 124, 124},
		{asExit(atoll.Exit{Code: 137, Signal: 9}), 137, 137},
		{signalError{atoll.SIGINT}, 130, 130},
		{signalError{atoll.SIGTERM}, 143, 143},
		{errors.New("anything"), 125, 1},
		{usageErrorf("wrong"), 125, 2},
		{fmt.Errorf("wrapped: %w", usageErrorf("wrong")), 125, 2},
		{atoll.E("exec", "web", atoll.ErrNotFound, nil), 125, 1},
		{atoll.E("exec", "web", atoll.ErrTimeout, nil), 125, 1},
		{atoll.E("exec", "web", atoll.ErrInvalid, nil), 125, 1},
		{atoll.E("exec", "web", atoll.ErrExecFailed, nil), 126, 1},
		{atoll.E("exec", "web", atoll.ErrCommandNotFound, nil), 127, 1},
		{errors.Join(errors.New("x"), atoll.E("create", "", atoll.ErrCommandNotFound, nil)), 127, 1},
	}
	for _, tt := range tests {
		run, other := exitCode(tt.err, true), exitCode(tt.err, false)
		if run != tt.wantRun || other != tt.wantOther {
			t.Errorf("exitCode(%v) = %d for run, %d for others, want %d, %d", tt.err, run, other, tt.wantRun, tt.wantOther)
		}
	}
}

func TestParseKeys(t *testing.T) {
	tests := []struct {
		in   string
		want []byte
		ok   bool
	}{
		{"ctrl-p,ctrl-q", []byte{16, 17}, true},
		{"ctrl-]", []byte{29}, true},
		{"ctrl-@", []byte{0}, true},
		{"Ctrl-A,d", []byte{1, 'd'}, true},
		{"~", []byte{'~'}, true},
		{"", nil, true},
		{"ctrl-", nil, false},
		{"ctrl-1", nil, false},
		{"esc", nil, false},
		{"a,,b", nil, false},
	}
	for _, tt := range tests {
		got, err := parseKeys(tt.in)
		if !slices.Equal(got, tt.want) || (err == nil) != tt.ok {
			t.Errorf("parseKeys(%q) = %v, %v, want %v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestDetachReader(t *testing.T) {
	tests := []struct {
		in, want string
		detached bool
	}{
		{"hello", "hello", false},
		{"hi\x10\x11rest", "hi", true},
		{"\x10\x10\x11", "\x10", true},
		{"a\x10b\x11c", "a\x10b\x11c", false},
		{"a\x10", "a\x10", false},
		{"\x10\x11", "", true},
		{"", "", false},
	}
	for _, tt := range tests {
		for _, one := range []bool{false, true} {
			var r io.Reader = strings.NewReader(tt.in)
			if one {
				r = iotest.OneByteReader(r)
			}
			detached := false
			d := &detachReader{r: r, keys: []byte{16, 17}, detached: func() { detached = true }}
			got, err := io.ReadAll(d)
			if string(got) != tt.want || detached != tt.detached || err != nil {
				t.Errorf("%q (byte by byte %v): got %q, detached %v, %v, want %q, %v", tt.in, one, got, detached, err, tt.want, tt.detached)
			}
		}
	}
}

func TestDetachReaderOneKey(t *testing.T) {
	d := &detachReader{r: strings.NewReader("ab\x1dcd"), keys: []byte{29}, detached: func() {}}
	if got, err := io.ReadAll(d); string(got) != "ab" || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, "ab")
	}
}

func TestParseVolume(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	tests := []struct {
		in   string
		want atoll.Mount
		ok   bool
	}{
		{"data:/data", atoll.Mount{Type: atoll.MountVolume, Source: "data", Target: "/data"}, true},
		{"/src:/dst:ro", atoll.Mount{Type: atoll.MountBind, Source: "/src", Target: "/dst", ReadOnly: true}, true},
		{"/src:/dst:rw", atoll.Mount{Type: atoll.MountBind, Source: "/src", Target: "/dst"}, true},
		{".:/work", atoll.Mount{Type: atoll.MountBind, Source: dir, Target: "/work"}, true},
		{"./sub:/work", atoll.Mount{Type: atoll.MountBind, Source: dir + "/sub", Target: "/work"}, true},
		{"sub/x:/work", atoll.Mount{Type: atoll.MountBind, Source: dir + "/sub/x", Target: "/work"}, true},
		{"/only", atoll.Mount{}, false},
		{":/dst", atoll.Mount{}, false},
		{"a:/b:rx", atoll.Mount{}, false},
		{"a:/b:ro:z", atoll.Mount{}, false},
	}
	for _, tt := range tests {
		got, err := parseVolume(tt.in)
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("parseVolume(%q) = %+v, %v, want %+v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestParseMount(t *testing.T) {
	tests := []struct {
		in   string
		want atoll.Mount
		ok   bool
	}{
		{"type=bind,source=/a,target=/b,readonly", atoll.Mount{Type: atoll.MountBind, Source: "/a", Target: "/b", ReadOnly: true}, true},
		{"type=bind,src=/a,dst=/b,ro=false", atoll.Mount{Type: atoll.MountBind, Source: "/a", Target: "/b"}, true},
		{"source=vol,destination=/b", atoll.Mount{Type: atoll.MountVolume, Source: "vol", Target: "/b"}, true},
		{"type=tmpfs,target=/t,tmpfs-size=1m", atoll.Mount{Type: atoll.MountTmpfs, Target: "/t", Size: 1 << 20}, true},
		{"type=tmpfs,target=/t,tmpfs-size=big", atoll.Mount{}, false},
		{"type=bind,bind-propagation=shared", atoll.Mount{}, false},
	}
	for _, tt := range tests {
		got, err := parseMount(tt.in)
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("parseMount(%q) = %+v, %v, want %+v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestParseForwards(t *testing.T) {
	tests := []struct {
		in   string
		want forwarding
		ok   bool
	}{
		{"80", forwarding{80, 80}, true},
		{"8080:80", forwarding{8080, 80}, true},
		{"0:80", forwarding{0, 80}, true},
		{"80:0", forwarding{}, false},
		{"0", forwarding{}, false},
		{"70000", forwarding{}, false},
		{"a:80", forwarding{}, false},
		{":80", forwarding{}, false},
	}
	for _, tt := range tests {
		got, err := parseForwards([]string{tt.in})
		if (err == nil) != tt.ok || tt.ok && got[0] != tt.want {
			t.Errorf("parseForwards(%q) = %+v, %v, want %+v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestParsePublish(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want atoll.Port
		ok   bool
	}{
		{"80", atoll.Port{Port: 80, Publish: true}, true},
		{"8080:80", atoll.Port{Port: 80, Publish: true, HostPort: 8080}, true},
		{"80:80", atoll.Port{Port: 80, Publish: true, HostPort: 80}, true},
		{"0:80", atoll.Port{Port: 80, Publish: true}, true},
		{"0.0.0.0:8080:80", atoll.Port{}, false},
		{"80/udp", atoll.Port{}, false},
		{"", atoll.Port{}, false},
	} {
		if got, err := parsePublish(tt.in); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parsePublish(%q) = %+v, %v, want %+v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestSetNetwork(t *testing.T) {
	for _, tt := range []struct {
		in    string
		allow []string
		want  atoll.Network
		ok    bool
	}{
		{"", nil, atoll.Network{}, true},
		{"", []string{"a"}, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"a"}}, true},
		{"on", []string{"a"}, atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"a"}}, true},
		{"named:web", nil, atoll.Network{Mode: atoll.NetworkNamed, Name: "web"}, true},
		{"named:on", nil, atoll.Network{Mode: atoll.NetworkNamed, Name: "on"}, true},
		{"named", nil, atoll.Network{}, false},
		{"web", nil, atoll.Network{}, false},
		{"on:web", nil, atoll.Network{}, false},
		{"host", nil, atoll.Network{}, false},
		{"container:x", nil, atoll.Network{}, false},
	} {
		spec := atoll.Spec{Network: atoll.Network{Allow: tt.allow}}
		err := (&specFlags{network: tt.in}).setNetwork(&spec)
		got := spec.Network
		if (err == nil) != tt.ok || tt.ok && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("--network %q: %+v, %v, want %+v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestParseFilter(t *testing.T) {
	got, err := parseFilter([]string{"name=web", "label=a=b=c", "label=d", "state=running", "provider=docker", "state=failed"})
	want := atoll.Filter{
		Name: "web", Provider: "docker", Labels: map[string]string{"a": "b=c", "d": ""},
		States: []atoll.State{atoll.StateRunning, atoll.StateFailed},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"web", "state=asleep", "colour=red"} {
		if _, err := parseFilter([]string{bad}); err == nil {
			t.Errorf("parseFilter(%q) succeeded", bad)
		}
	}
}

func TestAbsImage(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"":                   "",
		"host":               "host",
		"alpine:3.20":        "alpine:3.20",
		"example.com/oci:1":  "example.com/oci:1",
		"/rootfs":            "/rootfs",
		".":                  here,
		"./rootfs":           here + "/rootfs",
		"../rootfs":          filepath.Dir(here) + "/rootfs",
		"dir:rootfs":         "dir:" + here + "/rootfs",
		"dir:/rootfs":        "dir:/rootfs",
		"oci:layout:v1":      "oci:" + here + "/layout:v1",
		"docker-archive:a.t": "docker-archive:" + here + "/a.t",
		"oci:":               "oci:",
		"sha256:abc":         "sha256:abc",
	} {
		if got, err := absImage(ref); err != nil || got != want {
			t.Errorf("absImage(%q) = %q, %v, want %q", ref, got, err, want)
		}
	}
}

func TestEnvList(t *testing.T) {
	ours := []string{"HOME=/root", "EMPTY=", "HOMER=simpson"}
	f := envFlags{vars: []string{"A=1", "HOME", "EMPTY", "UNSET", "B=x=y"}}
	got, err := f.listVars(ours)
	want := []string{"A=1", "HOME=/root", "EMPTY=", "B=x=y"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestEnvFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "vars")
	for text, want := range map[string]string{
		"A=1\n\n # comment\r\n\tB= x=y \r\nHOME\nUNSET\nC=": `["A=1" "B= x=y " "HOME=/root" "C="]`,
		"\uFEFFA=1\n":        "[\"A=1\"]",
		"A=1\nexport B=2\n":  ":2: this is no shell script: write B=... without export",
		"export  B\n":        ":1: this is no shell script: write B=... without export",
		"#\n\nA B=2\n":       `:3: "A B" is not a variable`,
		"A =2\n":             `:1: "A " is not a variable`,
		"=2\n":               `:1: "" is not a variable`,
		"A=\xff\n":           `:1: "A" is not a variable`,
		"A=\x00\n":           `:1: "A" is not a variable`,
		"if true; then\n":    `:1: "if true; then" is not a variable`,
		"EXPORT=1\nexport=2": `["EXPORT=1" "export=2"]`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f := envFlags{files: []string{name}}
		got, err := f.listVars([]string{"HOME=/root"})
		shown := fmt.Sprintf("%q", got)
		if err != nil {
			shown = err.Error()
		}
		if !strings.HasPrefix(strings.TrimPrefix(shown, name), want) {
			t.Errorf("%q: %s, want %s", text, shown, want)
		}
	}
}

// The exit code of a push or pull tells that files were left out, as its help says.
func TestIncompleteSync(t *testing.T) {
	for failed, want := range map[int]int{0: 0, 2: exitIncomplete} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		err = (&app{stdout: out, stderr: out}).printStats(&filesync.Stats{Version: 7, Failed: failed}, nil, false)
		text, readErr := os.ReadFile(out.Name())
		if readErr != nil {
			t.Fatal(readErr)
		}
		if code := exitCode(err, false); code != want || strings.Contains(string(text), "files left out: 2") != (failed > 0) {
			t.Errorf("%d files failed: %v, exit code %d, want %d; printed %q", failed, err, code, want, text)
		}
	}
}

func TestInsistence(t *testing.T) {
	at := func(seconds ...float64) (again []bool) {
		var i insistence
		start := time.Now()
		for _, s := range seconds {
			again = append(again, i.countSignal(start.Add(time.Duration(s*float64(time.Second)))))
		}
		return again
	}
	if got, want := at(0, 0.5, 1), []bool{false, false, true}; !slices.Equal(got, want) {
		t.Errorf("three at once: got %v, want %v", got, want)
	}
	if got, want := at(0, 5, 10, 10.1, 10.2), []bool{false, false, false, false, true}; !slices.Equal(got, want) {
		t.Errorf("three late ones: got %v, want %v", got, want)
	}
}

func TestOutput(t *testing.T) {
	failure := errors.New("disk full")
	for _, tt := range []struct{ err, want error }{{errBrokenPipe, nil}, {failure, failure}} {
		o := newOutput(failingWriter{tt.err})
		for range 2 {
			if n, err := o.Write([]byte("abc")); n != 3 || err != nil {
				t.Errorf("Write = %d, %v, want success after an error", n, err)
			}
		}
		select {
		case <-o.broken:
		default:
			t.Error("broken is not closed")
		}
		if got := o.writeError(); !errors.Is(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("writeError() = %v, want %v", got, tt.want)
		}
	}
}

// failingWriter fails every Write.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestHead(t *testing.T) {
	tests := []struct {
		in        string
		text      string
		data      string
		truncated bool
	}{
		{"abc", "abc", "", false},
		{"abcdefgh", "abcdef", "", true},
		{"abcde\u20acfg", "abcde", "", true}, // characters are not split
		{"a\xffb", "", "a\xffb", false},
		{"", "", "", false},
	}
	for _, tt := range tests {
		h := newHead(6)
		for i := range len(tt.in) {
			h.Write([]byte{tt.in[i]})
		}
		text, data, truncated := h.readResult()
		if text != tt.text || string(data) != tt.data || truncated != tt.truncated {
			t.Errorf("%q: got %q, %q, %v, want %q, %q, %v", tt.in, text, data, truncated, tt.text, tt.data, tt.truncated)
		}
	}
}

func TestProgressLine(t *testing.T) {
	tests := []struct {
		p    atoll.Progress
		cols int
		want string
	}{
		{atoll.Progress{Phase: "pull"}, 80, "pull"},
		{atoll.Progress{Phase: "pull", Item: "debian", Done: 512}, 80, "pull debian 512 B"},
		{atoll.Progress{Phase: "pull", Done: 5 << 20, Total: 10 << 20}, 80, "pull [==========          ] 5.0 MiB of 10.0 MiB"},
		{atoll.Progress{Phase: "pull", Done: 9, Total: 3}, 80, "pull [====================] 9 B of 3 B"},
		{atoll.Progress{Phase: "a long phase"}, 6, "a long"},
		{atoll.Progress{Phase: "fetch kernel", Item: "linux", Done: 14 << 20, Step: 1, Steps: 3}, 80, "[1/3] fetch kernel linux 14.0 MiB"},
	}
	for _, tt := range tests {
		if got := progressLine(tt.p, tt.cols); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// Without a terminal, long work prints a line from time to time, and short work none.
func TestProgressLines(t *testing.T) {
	printed := make(chan string, 100)
	l := &progressLines{print: func(line string) { printed <- line }, first: 20 * time.Millisecond, every: 10 * time.Millisecond}
	end := l.startLines()
	l.showProgress(atoll.Progress{Phase: "pull", Item: "debian", Done: 5 << 20, Total: 10 << 20})
	if got, want := <-printed, "pull debian 5.0 MiB of 10.0 MiB"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	l.showProgress(atoll.Progress{Phase: "unpack", Step: 2, Steps: 3})
	for line := range printed { // the first of them may still be the old one
		if line == "[2/3] unpack" {
			break
		}
	}
	end()
	for len(printed) > 0 {
		<-printed
	}
	l = &progressLines{print: func(line string) { printed <- line }, first: time.Hour, every: time.Hour}
	end = l.startLines()
	l.showProgress(atoll.Progress{Phase: "pull"})
	end()
	if len(printed) > 0 {
		t.Errorf("short work prints %q", <-printed)
	}
}

func TestSandboxTable(t *testing.T) {
	now := time.Now()
	st := atoll.Status{
		ID: strings.Repeat("ab", 16), Provider: "mock", State: atoll.StateStopped, Exit: &atoll.Exit{Code: 3}, Created: now.Add(-3 * time.Hour),
		Spec: atoll.Spec{Project: atoll.DefaultProject, Cmd: []string{"sh", "-c", "echo\n\n  " + strings.Repeat("x", 80)}},
	}
	want := []string{"abababababab", "-", "mock", "stopped (3)", "-", "3h ago", "sh -c echo " + strings.Repeat("x", 28) + "…"}
	if got := sandboxTable([]atoll.Status{st}, now)[1]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	st.Spec.Project = "team"
	if got := sandboxTable([]atoll.Status{st}, now); got[0][2] != "PROJECT" || got[1][2] != "team" {
		t.Errorf("the table does not show another project: %q", got)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "now", 5 * time.Second: "5s ago", 3 * time.Minute: "3m ago", 5 * time.Hour: "5h ago", 72 * time.Hour: "3d ago",
	} {
		if got := formatAgo(d); got != want {
			t.Errorf("formatAgo(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestCopyTar(t *testing.T) {
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{
		{Name: ".", Typeflag: tar.TypeDir}, {Name: "sub/", Typeflag: tar.TypeDir}, {Name: "sub/f", Typeflag: tar.TypeReg, Size: 3},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "sub/f"}, {Name: "soft", Typeflag: tar.TypeSymlink, Linkname: "sub/f"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "abc")
		}
	}
	w.Close()
	if err := copyTar(&out, &in, "dir", &losses{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSuffix(h.Name+" "+h.Linkname, " "))
	}
	var single bytes.Buffer
	w = tar.NewWriter(&single)
	if err := w.WriteHeader(&tar.Header{Name: ".", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := copyTar(io.Discard, &single, "file", &losses{}); err != nil {
		t.Errorf("a single file: %v", err)
	}
	want := []string{"dir", "dir/sub/", "dir/sub/f", "dir/hard dir/sub/f", "dir/soft sub/f"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPipeReportsTheFirstFailure(t *testing.T) {
	wrote, red := errors.New("write"), errors.New("read")
	drain := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	fill := func(w io.Writer) error {
		for {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return err
			}
		}
	}
	if err := runPipe(func(io.Writer) error { return wrote }, drain); err != wrote {
		t.Errorf("got %v, want %v", err, wrote)
	}
	if err := runPipe(fill, func(io.Reader) error { return red }); err != red {
		t.Errorf("got %v, want %v", err, red)
	}
	if err := runPipe(func(io.Writer) error { return nil }, drain); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

// A program that unpacks the stream of cp stays in its directory, as cp itself does.
func TestHostileTar(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	for what, tt := range map[string]struct {
		entries []tar.Header
		want    string // part of the error; "" for none
	}{
		"an absolute name":         {[]tar.Header{file("/etc/passwd")}, `"/etc/passwd" of the archive from the sandbox leads out of it`},
		"a name with ..":           {[]tar.Header{file("a/../../b")}, "leads out"},
		"only ..":                  {[]tar.Header{{Name: "..", Typeflag: tar.TypeDir}}, "leads out"},
		"a hard link out":          {[]tar.Header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "../b"}}, "is a link that leads out"},
		"a hard link to /":         {[]tar.Header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}}, "is a link that leads out"},
		"a file below a link":      {[]tar.Header{link("a", "/etc"), file("a/passwd")}, "leads out"},
		"a hard link below a link": {[]tar.Header{link("a", "/etc"), {Name: "b", Typeflag: tar.TypeLink, Linkname: "a/passwd"}}, "leads out"},
		"deep below a link":        {[]tar.Header{link("x/a", ".."), file("x/a/b/c/d")}, "leads out"},
		"a device":                 {[]tar.Header{{Name: "a", Typeflag: tar.TypeBlock}}, "neither a file"},
		"a link as the root":       {[]tar.Header{link(".", "/etc"), file("passwd")}, "leads out"},
		"a link to anywhere":       {[]tar.Header{link("a", "/etc"), link("b", "../../x")}, ""},
		"a link that is replaced":  {[]tar.Header{link("a", "/etc"), {Name: "a/", Typeflag: tar.TypeDir}, file("a/f")}, "leads out"},
		"a hard link to a link":    {[]tar.Header{link("a", "/etc"), {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}, file("b/passwd")}, "leads out"},
		"a link in another case":   {[]tar.Header{link("A", "/etc"), file("a/passwd")}, "leads out"},
		"two dots in a name":       {[]tar.Header{file("a..b"), file("..c"), file("d/..e")}, ""},
	} {
		for _, below := range []string{"", "dir"} {
			var in, out bytes.Buffer
			w := tar.NewWriter(&in)
			for _, h := range tt.entries {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
			err := copyTar(&out, &in, below, &losses{})
			if tt.want == "" && err != nil || tt.want != "" && (atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s below %q: %v, want %q", what, below, err, tt.want)
			}
		}
	}
}

// No command prints text from a sandbox so that it controls a terminal, or shows something else than what is there.
func TestHostileText(t *testing.T) {
	const hostile = "a\x1b[2J\x7f\u009b31m\u202eb"
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a := &app{stdout: file, stderr: file}
	if err := errors.Join(a.printJSON([]string{hostile}), a.printEvent([]string{hostile}), a.printTable([][]string{{hostile}})); err != nil {
		t.Fatal(err)
	}
	a.printMessage("%s", hostile)
	fmt.Fprintln(file, progressLine(atoll.Progress{Phase: "pull", Item: hostile}, 80))
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := `["a\u001b[2J\u007f\u009b31m\u202eb"]` + "\n"
	want += want + `a\x1b[2J\x7f\x9b31m\u202eb` + "\n" + `atoll: a\x1b[2J\x7f\x9b31m\u202eb` + "\n" + `pull a\x1b[2J\x7f\x9b31m\u202eb` + "\n"
	if string(got) != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// Doctor prints the reason for the default provider.
func TestWhyThat(t *testing.T) {
	for _, tt := range []struct {
		choice stack.Choice
		from   string
		want   string
	}{
		{stack.Choice{Provider: "gvisor"}, "default", "preferred on " + runtime.GOOS},
		{stack.Choice{Provider: "mock"}, "ATOLL_PROVIDER", "set by ATOLL_PROVIDER"},
		{stack.Choice{Provider: "docker", Reason: "gvisor does not work here"}, "default", "gvisor does not work here"},
		{stack.Choice{Provider: "gvisor", Err: errors.New("nothing works")}, "default", "nothing can replace it"},
	} {
		if got := whyThat(tt.choice, tt.from); got != tt.want {
			t.Errorf("%+v from %s: %q, want %q", tt.choice, tt.from, got, tt.want)
		}
	}
}

// An error of a creation says what helps, if something that the creation needs cannot be reached.
func TestAdviseCreate(t *testing.T) {
	failed := func(op string, kind atoll.Kind) error { return atoll.Errorf(op, "x", kind, "it failed") }
	for _, tt := range []struct {
		provider string
		err      error
		says     string // at its end
	}{
		{"", failed("create", atoll.ErrUnavailable), "it failed; atoll doctor names what is missing"},
		{"docker", failed("create", atoll.ErrUnavailable), "it failed; atoll doctor --provider docker names what is missing"},
		{"", failed("image", atoll.ErrUnavailable), "it failed; without --image, sandboxes of gVisor and native use the programs of this machine"},
		{"native", failed("image", atoll.ErrUnavailable), "it failed; without --image, sandboxes of gVisor and native use the programs of this machine"},
		{"docker", failed("image", atoll.ErrUnavailable), "it failed"},
		{"docker", failed("create", atoll.ErrInvalid), "it failed"},
		{"docker", failed("add workspace", atoll.ErrUnavailable), "it failed"},
		{"docker", context.Canceled, context.Canceled.Error()},
	} {
		got := new(connection).adviseCreate(&atoll.Spec{Provider: tt.provider}, tt.err)
		if !strings.HasSuffix(got.Error(), tt.says) || atoll.KindOf(got) != atoll.KindOf(tt.err) {
			t.Errorf("%v became %v, want %q at its end", tt.err, got, tt.says)
		}
	}
}
