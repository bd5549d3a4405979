package sshd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A rawSFTP is a client of the bare protocol, which clients of the library and of
// OpenSSH only use a part of.
type rawSFTP struct {
	t       *testing.T
	r       io.Reader
	w       io.Writer
	home    string
	id      uint32
	handles map[string]string // by label
}

func newRawSFTP(t *testing.T, r io.Reader, w io.Writer, home string) *rawSFTP {
	c := &rawSFTP{t: t, r: r, w: w, home: home, handles: map[string]string{}}
	c.sendPacket(fxpInit, []byte{0, 0, 0, 3})
	if kind, body := c.readPacket(); kind != fxpVersion || !bytes.HasPrefix(body, []byte{0, 0, 0, 3}) {
		t.Fatalf("the server answers %d %q", kind, body)
	}
	return c
}

func (c *rawSFTP) sendPacket(kind byte, body []byte) {
	c.t.Helper()
	packet := append(binary.BigEndian.AppendUint32(nil, uint32(1+len(body))), kind)
	if _, err := c.w.Write(append(packet, body...)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawSFTP) readPacket() (kind byte, body []byte) {
	c.t.Helper()
	var head [5]byte
	_, err := io.ReadFull(c.r, head[:])
	if err == nil {
		body = make([]byte, binary.BigEndian.Uint32(head[:])-1)
		_, err = io.ReadFull(c.r, body)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return head[4], body
}

// A label names a handle in a request. If a reply has a handle, it gets the label.
type label string

// sendRequest sends a request with fields: numbers, strings, bytes as they are, and
// handles.
func (c *rawSFTP) sendRequest(kind byte, fields ...any) {
	c.t.Helper()
	c.id++
	body := binary.BigEndian.AppendUint32(nil, c.id)
	for _, field := range fields {
		switch v := field.(type) {
		case string:
			body = append(body, ssh.Marshal(struct{ S string }{v})...)
		case label:
			body = append(body, ssh.Marshal(struct{ S string }{c.handles[string(v)]})...)
		case uint32:
			body = binary.BigEndian.AppendUint32(body, v)
		case uint64:
			body = binary.BigEndian.AppendUint64(body, v)
		case []byte:
			body = append(body, v...)
		}
	}
	c.sendPacket(kind, body)
}

// readReply describes the next reply, without what differs between any two servers.
func (c *rawSFTP) readReply(opened label) string {
	c.t.Helper()
	kind, body := c.readPacket()
	body = body[4:]
	switch kind {
	case fxpStatus:
		return fmt.Sprint("status ", binary.BigEndian.Uint32(body))
	case fxpHandle:
		c.handles[string(opened)], _, _ = cutString(body)
		return "handle"
	case fxpData:
		data, _, _ := cutString(body)
		return fmt.Sprintf("data %q", data)
	case fxpAttrs:
		return describeAttributes(body)
	case fxpExtendedReply:
		return fmt.Sprintf("%d bytes", len(body))
	case fxpName:
		var names []string
		for n, rest := binary.BigEndian.Uint32(body), body[4:]; n > 0; n-- {
			v, err := parsePayload[struct {
				Name, Long string
				Rest       []byte `ssh:"rest"`
			}](rest)
			if err != nil {
				c.t.Fatal(err)
			}
			attrs := describeAttributes(v.Rest)
			if v.Name == "." || v.Name == ".." {
				attrs = "" // the parent differs
			}
			names = append(names, strings.Replace(v.Name, c.home, "HOME", 1)+" "+attrs)
			rest = v.Rest[4:]
			if binary.BigEndian.Uint32(v.Rest) != 0 {
				rest = v.Rest[32:]
			}
		}
		slices.Sort(names)
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("type %d", kind)
}

// describeAttributes describes attributes: the size of files, and times that a test set.
func describeAttributes(b []byte) string {
	if len(b) < 32 || binary.BigEndian.Uint32(b) != attrSize|attrOwner|attrMode|attrTimes {
		return "no attributes"
	}
	mode := binary.BigEndian.Uint32(b[20:])
	text := fmt.Sprintf("%o of %d:%d", mode, binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:]))
	if mode>>12 == 0o10 {
		text += fmt.Sprint(" size ", binary.BigEndian.Uint64(b[4:]))
	}
	if modified := binary.BigEndian.Uint32(b[28:]); modified < 1_600_000_000 {
		text += fmt.Sprint(" time ", modified)
	}
	return text
}

func (c *rawSFTP) call(opened label, kind byte, fields ...any) string {
	c.t.Helper()
	c.sendRequest(kind, fields...)
	return c.readReply(opened)
}

// openReference starts OpenSSH's sftp-server in a directory.
func openReference(t *testing.T) *rawSFTP {
	t.Helper()
	const program = "/usr/lib/openssh/sftp-server"
	testenv.Need(t, testenv.Program(program, "openssh-sftp-server"))
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, "-u", "0022")
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // by then the test has its result
	})
	return newRawSFTP(t, out, in, dir)
}

// openRaw starts sftp in the rig's sandbox.
func (r *rig) openRaw(t *testing.T) *rawSFTP {
	t.Helper()
	s := r.newSession(t, "web")
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RequestSubsystem("sftp"); err != nil {
		t.Fatal(err)
	}
	st, err := r.sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return newRawSFTP(t, out, in, st.Spec.Workdir)
}

// Attributes as in packets.
func ofSize(n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{0, 0, 0, attrSize}, n)
}
func ofMode(mode uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{0, 0, 0, attrMode}, mode)
}
func ofTimes(seconds uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{0, 0, 0, attrTimes}, seconds), seconds)
}
func ofOwner(uid, gid uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{0, 0, 0, attrOwner}, uid), gid)
}

var noAttributes = []byte{0, 0, 0, 0}

// A request of a test. opened is the label of the handle in its reply.
type testRequest struct {
	opened label
	kind   byte
	fields []any
}

func req(kind byte, fields ...any) testRequest { return testRequest{"", kind, fields} }

func openAs(opened label, name string, flags uint32, attrs []byte) testRequest {
	return testRequest{opened, fxpOpen, []any{name, flags, attrs}}
}

func write(h label, offset uint64, data string) testRequest {
	return req(fxpWrite, h, offset, data)
}
func read(h label, offset uint64, n uint32) testRequest { return req(fxpRead, h, offset, n) }

// likeOpenSSH are requests in their order.
var likeOpenSSH = slices.Concat([]testRequest{
	// files, and files that are open twice
	openAs("a", "a", fxfRead|fxfWrite|fxfCreat|fxfTrunc, noAttributes), req(fxpLstat, "a"), req(fxpStat, "a"), req(fxpFstat, label("a")),
	write("a", 0, "hello"), req(fxpLstat, "a"), req(fxpStat, "a"), req(fxpFstat, label("a")), read("a", 0, 100), read("a", 5, 10), read("a", 99, 1), read("a", 1, 0),
	openAs("b", "a", fxfRead, noAttributes), read("b", 1, 3), write("a", 1, "ELL"), read("b", 0, 100), write("b", 0, "no"),
	openAs("c", "a", fxfWrite|fxfAppend, noAttributes), write("c", 0, "+tail"), read("a", 0, 100), read("b", 0, 100), write("a", 5, "-TAIL"),
	write("c", 2, "!"), read("b", 0, 100), read("c", 0, 1), req(fxpFstat, label("b")), write("a", 20, "hole"), read("b", 0, 100),
	openAs("d", "a", fxfWrite|fxfTrunc, noAttributes), read("b", 0, 100), write("d", 0, "new"), read("b", 0, 100), req(fxpFstat, label("a")),
	req(fxpFsetstat, label("a"), ofSize(2)), read("b", 0, 9), req(fxpFsetstat, label("b"), ofMode(0o604)), req(fxpFsetstat, label("b"), ofTimes(1e9)),
	req(fxpStat, "a"), req(fxpFsetstat, label("b"), ofSize(1)), req(fxpFstat, label("d")),
	// names that go while a file is open
	req(fxpRename, "a", "a2"), write("a", 2, "xyz"), req(fxpFstat, label("a")), req(fxpStat, "a"), req(fxpStat, "a2"),
	openAs("e", "a", fxfWrite|fxfCreat|fxfExcl, noAttributes), write("e", 0, "other"), read("b", 0, 9), req(fxpClose, label("e")),
	req(fxpExtended, "posix-rename@openssh.com", "a", "a2"), read("b", 0, 9), write("a", 0, "gone"), read("b", 0, 9), req(fxpStat, "a2"),
	req(fxpFsetstat, label("a"), ofMode(0o600)), req(fxpStat, "a2"), req(fxpExtended, "fsync@openssh.com", label("a")),
	req(fxpClose, label("a")), req(fxpClose, label("a")), req(fxpFstat, label("a")), write("a", 0, "x"), read("a", 0, 1), read("none", 0, 1),
	req(fxpClose, label("b")), req(fxpClose, label("c")), req(fxpClose, label("d")),
	// how files are opened
	openAs("m", "m1", fxfWrite|fxfCreat, ofMode(0o777)), write("m", 0, "1"), req(fxpClose, label("m")), req(fxpStat, "m1"),
	openAs("m", "m2", fxfWrite|fxfCreat, ofMode(0o400)), write("m", 0, "22"), req(fxpClose, label("m")), req(fxpStat, "m2"),
	openAs("m", "m3", fxfWrite|fxfCreat, ofMode(0)), write("m", 0, "333"), req(fxpClose, label("m")), req(fxpStat, "m3"),
	openAs("m", "m1", fxfRead, noAttributes), req(fxpClose, label("m")), openAs("m", "none", fxfRead, noAttributes), openAs("m", "none", fxfWrite, noAttributes),
	openAs("m", "m1", fxfWrite|fxfCreat|fxfExcl, noAttributes), openAs("m", "no/f", fxfWrite|fxfCreat, noAttributes), openAs("m", "m1/f", fxfWrite|fxfCreat, noAttributes),
	openAs("m", "m1/f", fxfRead, noAttributes), openAs("m", "", fxfRead, noAttributes), openAs("m", "m1", fxfWrite|fxfCreat, ofMode(0o640)), req(fxpClose, label("m")), req(fxpStat, "m1"),
	openAs("m", "new", fxfRead|fxfCreat, noAttributes), read("m", 0, 1), req(fxpClose, label("m")), req(fxpStat, "new"),
}, []testRequest{
	// attributes of closed files
	req(fxpSetstat, "m1", ofMode(0o600)), req(fxpSetstat, "m1", ofSize(4)), req(fxpSetstat, "m1", ofTimes(1.1e9)), req(fxpStat, "m1"),
	req(fxpSetstat, "m1", ofOwner(1234, 4321)), req(fxpStat, "m1"), req(fxpSetstat, "m1", ofMode(0o1777)), req(fxpStat, "m1"), req(fxpSetstat, "m1", noAttributes),
	req(fxpSetstat, "none", ofMode(0o600)), req(fxpSetstat, "m1/x", ofMode(0o600)), req(fxpSymlink, "m1", "l"), req(fxpLstat, "l"), req(fxpStat, "l"), req(fxpReadlink, "l"),
	req(fxpSetstat, "l", ofMode(0o644)), req(fxpStat, "m1"), req(fxpLstat, "l"), req(fxpExtended, "lsetstat@openssh.com", "l", ofTimes(1.2e9)), req(fxpLstat, "l"), req(fxpStat, "l"),
	req(fxpExtended, "lsetstat@openssh.com", "l", ofOwner(1234, 4321)), req(fxpLstat, "l"), req(fxpExtended, "lsetstat@openssh.com", "m2", ofMode(0o666)), req(fxpStat, "m2"),
	req(fxpExtended, "lsetstat@openssh.com", "m2", ofSize(1)), req(fxpExtended, "lsetstat@openssh.com", "none", ofMode(0o600)), req(fxpSetstat, "l", ofTimes(1.3e9)), req(fxpStat, "m1"),
	// links
	req(fxpExtended, "hardlink@openssh.com", "m1", "h"), req(fxpSetstat, "h", ofSize(1)), req(fxpStat, "m1"), req(fxpExtended, "hardlink@openssh.com", "m1", "h"),
	req(fxpExtended, "hardlink@openssh.com", "none", "h2"), req(fxpExtended, "hardlink@openssh.com", "m1", "no/h"), req(fxpExtended, "hardlink@openssh.com", "m1", "m2/h"),
	req(fxpReadlink, "m1"), req(fxpReadlink, "none"), req(fxpSymlink, "x", "l"), req(fxpSymlink, "x", "no/l"), req(fxpSymlink, "x", "m1/l"), req(fxpSymlink, "nowhere", "dangling"),
	req(fxpStat, "dangling"), req(fxpLstat, "dangling"), openAs("m", "dangling", fxfRead, noAttributes), openAs("m", "dangling", fxfWrite|fxfCreat|fxfExcl, noAttributes),
	openAs("m", "dangling", fxfWrite|fxfCreat, noAttributes), req(fxpClose, label("m")), req(fxpStat, "nowhere"), req(fxpSymlink, "loop", "loop"), req(fxpStat, "loop"),
	openAs("m", "loop", fxfRead, noAttributes), openAs("m", "l", fxfWrite|fxfTrunc, noAttributes), req(fxpClose, label("m")), req(fxpLstat, "l"), req(fxpStat, "m1"),
	// directories
	req(fxpMkdir, "d", noAttributes), req(fxpStat, "d"), req(fxpMkdir, "d", noAttributes), req(fxpMkdir, "m1", noAttributes), req(fxpMkdir, "no/d", noAttributes), req(fxpMkdir, "m1/d", noAttributes),
	req(fxpMkdir, "d/private", ofMode(0o700)), req(fxpStat, "d/private"), req(fxpMkdir, "d/open", ofMode(0o777)), req(fxpStat, "d/open"), req(fxpSetstat, "d", ofMode(0o1755)), req(fxpStat, "d"),
	req(fxpSetstat, "d", ofSize(1)), openAs("m", "d", fxfRead|fxfWrite, noAttributes), req(fxpOpendir, "m1"), req(fxpOpendir, "none"), req(fxpOpendir, "loop"),
	{"dir", fxpOpendir, []any{"d"}}, req(fxpFstat, label("dir")), req(fxpReaddir, label("dir")), req(fxpReaddir, label("dir")), read("dir", 0, 1), write("dir", 0, "x"),
	req(fxpFsetstat, label("dir"), ofTimes(1.4e9)), req(fxpFstat, label("dir")), req(fxpClose, label("dir")), req(fxpReaddir, label("dir")),
	req(fxpSymlink, "../m1", "d/up"), req(fxpSymlink, "d/open", "deep"), {"dir", fxpOpendir, []any{"deep/.."}}, req(fxpReaddir, label("dir")), req(fxpClose, label("dir")),
	req(fxpStat, "deep/../up"), req(fxpStat, "d/../m1"), req(fxpLstat, "./deep"), req(fxpStat, "deep/"), req(fxpStat, "none/../m1"), req(fxpStat, "d/up/x"),
	req(fxpRmdir, "d"), req(fxpRmdir, "m1"), req(fxpRmdir, "none"), req(fxpRmdir, "deep"), req(fxpRemove, "d"), req(fxpRemove, "none"), req(fxpRemove, "m1/x"), req(fxpRmdir, "d/private"), req(fxpRemove, "deep"),
	// renames
	req(fxpRename, "m1", "m2"), req(fxpRename, "none", "x"), req(fxpRename, "m1", "no/x"), req(fxpRename, "m1", "m2/x"), req(fxpRename, "l", "l2"), req(fxpReadlink, "l2"), req(fxpMkdir, "d2", noAttributes),
	req(fxpRename, "d2", "d"), req(fxpRename, "d2", "d3"), req(fxpStat, "d3"), req(fxpExtended, "posix-rename@openssh.com", "d3", "d/open"), req(fxpStat, "d/open"), req(fxpMkdir, "d4", noAttributes),
	req(fxpExtended, "posix-rename@openssh.com", "d4", "d"), req(fxpExtended, "posix-rename@openssh.com", "d", "m2"), req(fxpExtended, "posix-rename@openssh.com", "m2", "d"),
	req(fxpExtended, "posix-rename@openssh.com", "m2", "m1"), req(fxpStat, "m1"), req(fxpStat, "h"), req(fxpExtended, "posix-rename@openssh.com", "none", "m1"), req(fxpExtended, "posix-rename@openssh.com", "m1", "m1"),
}, []testRequest{
	// the rest
	req(fxpRealpath, "."), req(fxpRealpath, "d/../m1"), req(fxpRealpath, "l2"), req(fxpRealpath, "none"), req(fxpRealpath, "no/none"), req(fxpRealpath, "m1/x"), req(fxpRealpath, "d/up"), req(fxpRealpath, "loop"), req(fxpRealpath, ""),
	req(fxpExtended, "statvfs@openssh.com", "."), req(fxpExtended, "statvfs@openssh.com", "none"), req(fxpExtended, "limits@openssh.com"), req(fxpExtended, "nothing@example.com", "x"),
	openAs("from", "h", fxfRead|fxfWrite|fxfTrunc, noAttributes), openAs("to", "copy", fxfRead|fxfWrite|fxfCreat|fxfTrunc, noAttributes), write("from", 0, "0123456789"),
	req(fxpExtended, "copy-data", label("from"), uint64(0), uint64(0), label("to"), uint64(0)), read("to", 0, 99), req(fxpExtended, "copy-data", label("from"), uint64(2), uint64(3), label("to"), uint64(8)), read("to", 0, 99),
	req(fxpExtended, "copy-data", label("from"), uint64(8), uint64(9), label("to"), uint64(20)), read("to", 0, 99), req(fxpExtended, "copy-data", label("from"), uint64(0), uint64(1), label("from"), uint64(5)),
	req(fxpExtended, "copy-data", label("none"), uint64(0), uint64(1), label("to"), uint64(5)), req(fxpExtended, "copy-data", label("from"), uint64(50), uint64(0), label("to"), uint64(0)), req(fxpFstat, label("to")),
	req(fxpExtended, "fstatvfs@openssh.com", label("to")), req(fxpExtended, "fstatvfs@openssh.com", label("none")), req(fxpExtended, "fsync@openssh.com", label("none")),
	req(fxpClose, label("from")), req(fxpClose, label("to")),
})

// Each request has the same result as with OpenSSH's sftp-server, and so have the files
// at the end.
func TestSFTPLikeOpenSSH(t *testing.T) {
	want := openReference(t)
	r := newRig(t, providers["local"](t), nil)
	got := r.openRaw(t)
	for i, q := range likeOpenSSH {
		ours, reference := got.call(q.opened, q.kind, q.fields...), want.call(q.opened, q.kind, q.fields...)
		if ours != reference {
			t.Errorf("request %d, type %d, %q: %s; sftp-server: %s", i, q.kind, q.fields, ours, reference)
		}
	}
	dir := r.hostDir(t)
	if ours, reference := describeTree(t, dir), describeTree(t, want.home); ours != reference {
		t.Errorf("the files are\n%swith sftp-server\n%s", ours, reference)
	}
}

// Requests that are sent together are performed in their order, as with sftp-server.
func TestSFTPOrderLikeOpenSSH(t *testing.T) {
	batch := []testRequest{}
	for i := range 60 {
		batch = append(batch, write("log", 7, fmt.Sprintf("line %d\n", i)))
		if i%9 == 0 {
			batch = append(batch, req(fxpStat, "log"), read("all", uint64(i), 20), read("all", uint64(i)+20, 20), read("all", uint64(i)+40, 400))
		}
		if i%13 == 0 {
			batch = append(batch, write("all", uint64(i), "<"), write("all", uint64(i)+1, ">"), write("all", 1, "!"), req(fxpFsetstat, label("log"), ofSize(uint64(i))))
		}
	}
	batch = append(batch, read("all", 0, 1000))
	want := openReference(t)
	forEachProvider(t, func(t *testing.T, r *rig) {
		var replies [2][]string
		for i, c := range []*rawSFTP{r.openRaw(t), want} {
			for label, flags := range map[label]uint32{"log": fxfWrite | fxfAppend | fxfCreat, "all": fxfRead | fxfWrite | fxfCreat} {
				if got := c.call(label, fxpOpen, "log", flags, noAttributes); got != "handle" {
					t.Fatal(got)
				}
			}
			for _, q := range batch {
				c.sendRequest(q.kind, q.fields...)
			}
			for range batch {
				replies[i] = append(replies[i], c.readReply(""))
			}
			c.call("", fxpRemove, "log")
		}
		for i, q := range batch {
			if ours, reference := replies[0][i], replies[1][i]; ours != reference {
				t.Errorf("request %d, type %d, %q: %s; sftp-server: %s", i, q.kind, q.fields, ours, reference)
			}
		}
	})
}

// hostDir returns the work directory of a sandbox of the provider local.
func (r *rig) hostDir(t *testing.T) string {
	t.Helper()
	out, err := atoll.Capture(t.Context(), r.sb, &atoll.Command{Args: []string{"pwd", "-P"}}, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out.Stdout))
}

// describeTree describes all files below a directory.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = fmt.Sprintf("%q", data)
		}
		fmt.Fprintln(&b, strings.TrimPrefix(path, dir), info.Mode(), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
