package vm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

func TestValidate(t *testing.T) {
	able := Caps{Snapshot: true, Pause: true, Network: true, MTU: 9000, Shares: true, Locked: true, Formats: []Format{FormatRaw, FormatQcow2}}
	unable := Caps{Formats: []Format{FormatRaw}}
	good := Hardware{ID: "one", Dir: "/tmp/one", CPUs: 1, Memory: 128 << 20}
	card, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer card.Close()
	disk := Disk{ID: "root", Path: "/x"}
	for name, c := range map[string]struct {
		change func(*Hardware)
		caps   Caps
		kind   atoll.Kind
		text   string
	}{
		"good":               {func(*Hardware) {}, unable, "", ""},
		"much":               {func(h *Hardware) { h.CPUs, h.Memory, h.CID = 32, 32<<30, 3 }, unable, "", ""},
		"no id":              {func(h *Hardware) { h.ID = "" }, able, atoll.ErrInvalid, "no id"},
		"no directory":       {func(h *Hardware) { h.Dir = "" }, able, atoll.ErrInvalid, "1..80 bytes"},
		"long directory":     {func(h *Hardware) { h.Dir = "/" + strings.Repeat("x", 80) }, able, atoll.ErrInvalid, "1..80 bytes"},
		"no CPU":             {func(h *Hardware) { h.CPUs = 0 }, able, atoll.ErrInvalid, "within 1..32"},
		"many CPUs":          {func(h *Hardware) { h.CPUs = 33 }, able, atoll.ErrInvalid, "within 1..32"},
		"little memory":      {func(h *Hardware) { h.Memory = 127 << 20 }, able, atoll.ErrInvalid, "within 128"},
		"much memory":        {func(h *Hardware) { h.Memory = 32<<30 + 1<<20 }, able, atoll.ErrInvalid, "32"},
		"odd memory":         {func(h *Hardware) { h.Memory++ }, able, atoll.ErrInvalid, "multiple of 1 MiB"},
		"reserved CID":       {func(h *Hardware) { h.CID = 2 }, able, atoll.ErrInvalid, "at least 3"},
		"network":            {func(h *Hardware) { h.Network, h.MAC = card, net.HardwareAddr{2, 0, 0, 0, 0, 1} }, able, "", ""},
		"no sizes":           {func(h *Hardware) { h.CPUs, h.Memory = 0, 0 }, Caps{Sizeless: true}, "", ""},
		"sizes":              {func(*Hardware) {}, Caps{Sizeless: true}, atoll.ErrUnsupported, "leave both at 0"},
		"archive":            {func(h *Hardware) { h.Root = "/x" }, Caps{Root: true}, "", ""},
		"no archive":         {func(*Hardware) {}, Caps{Root: true}, atoll.ErrInvalid, "no root archive"},
		"archives":           {func(h *Hardware) { h.Root = "/x" }, able, atoll.ErrUnsupported, "make a disk"},
		"home":               {func(h *Hardware) { h.Root, h.Home = "/x", "/h" }, Caps{Root: true}, "", ""},
		"no homes":           {func(h *Hardware) { h.Home = "/h" }, able, atoll.ErrUnsupported, "give it disks"},
		"frames":             {func(h *Hardware) { h.Network = card }, Caps{Network: true, Frames: true}, atoll.ErrUnsupported, "dial port 49"},
		"its own kernel":     {func(h *Hardware) { h.Root, h.Kernel = "/x", "/k" }, Caps{Root: true}, atoll.ErrUnsupported, "kernel"},
		"archive and disks":  {func(h *Hardware) { h.Root, h.Disks = "/x", []Disk{disk} }, Caps{Root: true, Formats: able.Formats}, atoll.ErrUnsupported, "disks"},
		"no MAC":             {func(h *Hardware) { h.Network = card }, able, atoll.ErrInvalid, "six bytes"},
		"no network":         {func(h *Hardware) { h.Network = card }, unable, atoll.ErrUnsupported, "no network"},
		"MTU":                {func(h *Hardware) { h.Network, h.MAC, h.MTU = card, net.HardwareAddr{2, 0, 0, 0, 0, 1}, 9000 }, able, "", ""},
		"large MTU":          {func(h *Hardware) { h.Network, h.MAC, h.MTU = card, net.HardwareAddr{2, 0, 0, 0, 0, 1}, 9001 }, able, atoll.ErrUnsupported, "9000 at most"},
		"usual MTU":          {func(h *Hardware) { h.Network, h.MAC, h.MTU = card, net.HardwareAddr{2, 0, 0, 0, 0, 1}, 1501 }, Caps{Network: true}, atoll.ErrUnsupported, "1500 at most"},
		"no shares":          {func(h *Hardware) { h.Shares = []Share{{Tag: "x", Dir: "/x"}} }, unable, atoll.ErrUnsupported, "no shared"},
		"read-only share":    {func(h *Hardware) { h.Shares = []Share{{Tag: "x", Dir: "/x", ReadOnly: true}} }, able, "", ""},
		"no read-only share": {func(h *Hardware) { h.Shares = []Share{{Tag: "x", Dir: "/x", ReadOnly: true}} }, Caps{Shares: true}, atoll.ErrUnsupported, "read-only disk"},
		"no snapshots":       {func(h *Hardware) { h.Snapshot = "/x" }, unable, atoll.ErrUnsupported, "no snapshots"},
		"disks":              {func(h *Hardware) { h.Disks = []Disk{disk, {ID: "data", Path: "/y", Format: FormatQcow2}} }, able, "", ""},
		"no such format":     {func(h *Hardware) { h.Disks = []Disk{{ID: "data", Path: "/y", Format: FormatQcow2}} }, unable, atoll.ErrUnsupported, "qcow2"},
		"disk twice":         {func(h *Hardware) { h.Disks = []Disk{disk, disk} }, able, atoll.ErrInvalid, "twice"},
		"disk without path":  {func(h *Hardware) { h.Disks = []Disk{{ID: "root"}} }, able, atoll.ErrInvalid, "no path"},
		"disk without id":    {func(h *Hardware) { h.Disks = []Disk{{Path: "/x"}} }, able, atoll.ErrInvalid, "1..20"},
		"disk with odd id":   {func(h *Hardware) { h.Disks = []Disk{{ID: "a,b", Path: "/x"}} }, able, atoll.ErrInvalid, "letters"},
		"share twice":        {func(h *Hardware) { h.Shares = []Share{{Tag: "x", Dir: "/x"}, {Tag: "x", Dir: "/y"}} }, able, atoll.ErrInvalid, "twice"},
		"share with odd tag": {func(h *Hardware) { h.Shares = []Share{{Tag: "x y", Dir: "/x"}} }, able, atoll.ErrInvalid, "letters"},
		"share of nothing":   {func(h *Hardware) { h.Shares = []Share{{Tag: "x"}} }, able, atoll.ErrInvalid, "no directory"},
	} {
		h := good
		c.change(&h)
		err := h.Validate(c.caps)
		if atoll.KindOf(err) != c.kind || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want kind %q and %q", name, err, c.kind, c.text)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	dir := t.TempDir()
	kernel, disk, empty := filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "base.img"), filepath.Join(dir, "empty")
	for path, text := range map[string]string{kernel: "k", disk: "d", empty: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := Config{DataDir: dir, KernelPath: kernel, BaseDiskPath: disk}
	c, idle, err := good.WithDefaults()
	if err != nil || idle != 30*time.Minute || c.CPUCount != 2 || c.MemoryMB != 2048 || c.ConsoleLogDir != "/state/atoll/vm" {
		t.Errorf("the defaults are %+v, %s, %v", c, idle, err)
	}
	if got, want := c.ConsoleLog("p"), "/state/atoll/vm/project-p/console.log"; got != want {
		t.Errorf("the console is %s, want %s", got, want)
	}
	if got, want := c.RootDisk("p"), filepath.Join(dir, "project-p.img"); got != want {
		t.Errorf("the disk is %s, want %s", got, want)
	}
	if got, want := c.DataDisk("p"), filepath.Join(dir, "project-p-data.img"); got != want {
		t.Errorf("the data disk is %s, want %s", got, want)
	}
	for text, want := range map[string]time.Duration{"0": 0, "45s": 45 * time.Second, "1h30m": 90 * time.Minute} {
		with := good
		with.IdleTimeout = text
		if _, idle, err := with.WithDefaults(); err != nil || idle != want {
			t.Errorf("idle timeout %q: %s, %v, want %s", text, idle, err, want)
		}
	}
	for text, change := range map[string]func(*Config){
		"no data directory": func(c *Config) { c.DataDir = "" },
		"no kernel":         func(c *Config) { c.KernelPath = "" },
		"no base disk":      func(c *Config) { c.BaseDiskPath = "" },
		"33 CPUs":           func(c *Config) { c.CPUCount = 33 },
		"-1 CPUs":           func(c *Config) { c.CPUCount = -1 },
		"127 MiB":           func(c *Config) { c.MemoryMB = 127 },
		"idle timeout":      func(c *Config) { c.IdleTimeout = "soon" },
		"no such file":      func(c *Config) { c.InitrdPath = filepath.Join(dir, "none") },
		"or empty":          func(c *Config) { c.KernelPath = empty },
		"is not a file":     func(c *Config) { c.BaseDiskPath = dir },
	} {
		with := good
		change(&with)
		if _, _, err := with.WithDefaults(); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// No address is given twice, however many ask at once.
func TestCIDs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cid")
	var all sync.WaitGroup
	var mu sync.Mutex
	seen := map[uint32]bool{}
	for range 50 {
		all.Go(func() {
			cid, err := CIDs(path).Next(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil || cid < MinCID || seen[cid] {
				t.Errorf("Next: %d, %v", cid, err)
			}
			seen[cid] = true
		})
	}
	all.Wait()
	if !seen[3] || !seen[52] {
		t.Errorf("they are %v", seen)
	}
	for text, want := range map[string]atoll.Kind{"odd": atoll.ErrInternal, string(binary.BigEndian.AppendUint32(nil, math.MaxUint32)): atoll.ErrExhausted} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if cid, err := CIDs(path).Next(t.Context()); atoll.KindOf(err) != want {
			t.Errorf("after %q: %d, %v", text, cid, err)
		}
	}
	lock, err := fsutil.AwaitLock(t.Context(), path+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := CIDs(path).Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another one asks: %v", err)
	}
}

// The file has the form of the seed's, with the agent's port in both places that readers expect.
func TestMetadata(t *testing.T) {
	dir := t.TempDir()
	m := &Metadata{
		SessionID: "abc123", Secret: "salt:hash", Workspace: &MetadataWorkspace{Path: "/w", Commit: "c", MountPoint: WorkspaceOrigin},
		Agent: &MetadataAgent{Command: "claude-code-acp", Port: 3002},
	}
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, MetadataName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(`{"session_id": "abc123", "secret": "salt:hash", "workspace": {"path": "/w", "commit": "c", "mount_point": "/.workspace.origin"},
		"agent": {"command": "claude-code-acp", "args": [], "port": 3002, "vsock": {"port": 3002}}}`), &want)
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if string(a) != string(b) {
		t.Errorf("it is %s, want %s", a, b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if m.Agent.Vsock.Port != 0 || m.Agent.Args != nil {
		t.Error("Write has changed it")
	}
}

func TestLastWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p", "console.log")
	for _, c := range []struct{ say, want string }{
		{"", ""},
		{"[    0.1] one\r\n[    0.2] two\r\n", "two"},
		{"[    1.5] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b\r\n[    1.6] CPU: 0\r\n", "kernel panic: Attempted to kill init! exitcode=0x0000000b"},
		{"\x1b[2Jcolour\x07 and \xff bytes\n", "[2Jcolour and  bytes"},
		{strings.Repeat("x", 1000), strings.Repeat("x", maxWords) + "..."},
		{strings.Repeat("filler\n", 10000) + "the end", "the end"},
	} {
		f, err := OpenConsole(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(c.say); err != nil { // after what was said before
			t.Fatal(err)
		}
		f.Close()
		if got := LastWords(path, info.Size()); got != c.want {
			t.Errorf("%.40q: %q, want %q", c.say, got, c.want)
		}
	}
	for _, none := range []string{"", filepath.Join(t.TempDir(), "none"), os.DevNull} {
		if got := LastWords(none, 0); got != "" {
			t.Errorf("%s says %q", none, got)
		}
	}
	f, err := OpenConsole("")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestScale(t *testing.T) {
	if Scale(Caps{}, time.Second) != time.Second || Scale(Caps{Emulated: true}, time.Second) <= time.Second {
		t.Error("what is emulated is as fast as what is not")
	}
}

func TestWords(t *testing.T) {
	if got := WordDisks(nil); got != "" {
		t.Errorf("no disks: %q", got)
	}
	word := WordDisks([]Disk{{ID: "root"}, {ID: "data"}})
	line := "console=ttyS0 " + word + " quiet\n"
	for id, want := range map[string]string{"root": "/dev/vda", "data": "/dev/vdb", "dat": "", "": ""} {
		if got := NamedDisk(line, id); got != want {
			t.Errorf("disk %q is %q, want %q", id, got, want)
		}
	}
	if NamedDisk("quiet", "root") != "" || Restarts(line) || !Restarts(line+WordRestart+"\n") {
		t.Error("found what is not there, or not what is")
	}
}
