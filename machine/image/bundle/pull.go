package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A State is how far a Pull is.
type State struct {
	Status Status      `json:"status"`
	Done   atoll.Bytes `json:"done,omitempty"`
	Total  atoll.Bytes `json:"total,omitempty"`
	Error  string      `json:"error,omitempty"` // why it failed
}

// Status is a word for that.
type Status string

// The statuses.
const (
	NotStarted  Status = "not_started"
	Downloading Status = "downloading"
	Extracting  Status = "extracting"
	Ready       Status = "ready"
	Failed      Status = "failed"
)

// PullOptions say what Pull has to do.
type PullOptions struct {
	// Name is what the bundle is called in the store. Empty means the last part of the
	// source's path.
	Name string
	// Digest is that of the bundle: another one is refused. Empty means any, which is
	// allowed over TLS, from this machine, and from a directory.
	Digest string
	// Progress may be nil. It is called from the calling goroutine.
	Progress func(atoll.Progress)
}

const (
	tries    = 5       // to fetch a file, the first included
	advanced = 1 << 20 // bytes, after which a failure is the first one again
)

// Pull makes the bundle that lies at source be in the store: the URL of a directory, or
// of the manifest in it, or a directory of this machine. What does not match its digest
// is refused. Files that the store has are not fetched, and those that were fetched in
// part go on from there, also when ctx has ended or the process has died. What fails
// for want of a connection, or with a status of 408, 429 or 5xx, is tried 5 times,
// after 5, 10, 20 and 40 seconds. The kernel that Firecracker boots is made from the
// other one.
//
// Kinds: ErrInvalid (the source, or what is there is damaged or no bundle),
// ErrNotExist, ErrDenied, ErrUnavailable (no answer), ErrExhausted (no space left).
func (s *Store) Pull(ctx context.Context, source string, opts PullOptions) (*Bundle, error) {
	p := &pull{s: s, source: source, opts: opts}
	p.say(State{Status: Downloading})
	b, err := p.run(ctx)
	if err != nil && ctx.Err() != nil {
		err = atoll.E("pull", source, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	if err = s.failed("pull", source, err); err != nil {
		p.state.Status, p.state.Error = Failed, err.Error()
		p.say(p.state)
		return nil, err
	}
	p.say(State{Status: Ready, Done: p.state.Total, Total: p.state.Total})
	return b, nil
}

// State is how far the last Pull of source is in this Store.
func (s *Store) State(source string) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, ok := s.pulls[source]; ok {
		return st
	}
	return State{Status: NotStarted}
}

// A pull is one under way.
type pull struct {
	s      *Store
	source string
	opts   PullOptions
	base   *url.URL // of the files; nil for a directory
	dir    string   // that the files are in
	state  State
	told   time.Time
}

func (p *pull) say(st State) {
	p.state = st
	p.s.mu.Lock()
	p.s.pulls[p.source] = st
	p.s.mu.Unlock()
}

// advance notes that n more bytes are there.
func (p *pull) advance(item string, n int64) {
	p.state.Done += atoll.Bytes(n)
	p.say(p.state)
	if p.opts.Progress != nil && time.Since(p.told) > 100*time.Millisecond {
		p.told = time.Now()
		p.opts.Progress(atoll.Progress{Phase: string(p.state.Status), Item: item, Done: int64(p.state.Done), Total: int64(p.state.Total)})
	}
}

// locate finds out where the files are.
func (p *pull) locate() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("pull", p.source, atoll.ErrInvalid, format, args...)
	}
	if p.opts.Digest != "" && !digestForm().MatchString(p.opts.Digest) {
		return bad("%q is no digest: write it like sha256:0123...", p.opts.Digest)
	}
	if !strings.Contains(p.source, "://") {
		dir, err := filepath.Abs(p.source)
		if err != nil {
			return err
		}
		if filepath.Base(dir) == manifestName {
			dir = filepath.Dir(dir)
		}
		p.dir = dir
		p.opts.Name = cmp.Or(p.opts.Name, filepath.Base(dir))
		return checkName(p.opts.Name)
	}
	u, err := url.Parse(p.source)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return bad("use the https:// URL of a directory with a %s, or a directory", manifestName)
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) && p.opts.Digest == "" {
		return bad("over plain HTTP anybody could change what is fetched: use https, or name the digest of the bundle (--digest sha256:...)")
	}
	if path.Base(u.Path) == manifestName {
		u.Path = path.Dir(u.Path)
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/", ""
	p.base = u
	p.opts.Name = cmp.Or(p.opts.Name, path.Base(u.Path))
	return checkName(p.opts.Name)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkRedirect keeps what began over TLS there.
func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) >= 10:
		return errors.New("it is redirected in a circle")
	case req.URL.Scheme != "https" && via[0].URL.Scheme == "https":
		return errors.New("it is redirected to plain HTTP")
	case req.URL.Scheme != "https" && loopback(req.URL.Hostname()) && !loopback(via[0].URL.Hostname()):
		return errors.New("it is redirected to this machine")
	}
	return nil
}

func (p *pull) run(ctx context.Context) (*Bundle, error) {
	if err := p.locate(); err != nil {
		return nil, err
	}
	raw, err := p.manifest(ctx)
	if err != nil {
		return nil, err
	}
	digest := digestOf(raw)
	if p.opts.Digest != "" && p.opts.Digest != digest {
		return nil, damaged(nil, "it is bundle %s, and not %s", digest, p.opts.Digest)
	}
	m, err := parseManifest(raw)
	if err != nil {
		return nil, err
	}
	if m.Arch != runtime.GOARCH {
		return nil, damaged(nil, "it is for %s, and this machine is %s", m.Arch, runtime.GOARCH)
	}
	unlock, err := p.s.lock(ctx, "pull-"+file(digest))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := p.s.read(digest); err == nil {
		if err := p.s.setName(p.opts.Name, digest); err != nil {
			return nil, err
		}
		return p.s.read(digest)
	}
	t, err := p.s.temp()
	if err != nil {
		return nil, err
	}
	defer t.close()
	dir := filepath.Join(t.dir, "bundle")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.files(ctx, m, dir); err != nil {
		return nil, err
	}
	return p.s.place(dir, raw, p.opts.Name)
}

// manifest fetches the manifest.
func (p *pull) manifest(ctx context.Context) ([]byte, error) {
	if p.base == nil {
		f, err := os.Open(filepath.Join(p.dir, manifestName))
		if err != nil {
			return nil, atoll.Errorf("pull", p.source, atoll.KindOf(err), "there is no bundle: %w", err)
		}
		defer f.Close()
		return limited(f)
	}
	var raw []byte
	err := p.retry(ctx, func() (int64, error) {
		resp, err := p.get(ctx, manifestName, 0)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if raw, err = limited(resp.Body); err != nil && !errors.As(err, new(*damage)) {
			err = &brokenError{err}
		}
		return 0, err
	})
	return raw, err
}

func limited(r io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err == nil && len(raw) > maxManifest {
		return nil, damaged(nil, "the manifest is larger than %d bytes", maxManifest)
	}
	return raw, err
}

// files puts the files of m into dir.
func (p *pull) files(ctx context.Context, m *Manifest, dir string) error {
	have, err := p.s.have()
	if err != nil {
		return err
	}
	derived := ""
	for _, f := range m.files() {
		if m.Kernel.ELF != nil && f.Name == m.Kernel.ELF.Name {
			derived = f.Name
			continue
		}
		p.state.Total += f.Size
	}
	for _, f := range m.files() {
		if f.Name == derived {
			continue
		}
		if err := p.file(ctx, f, have, dir); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if derived == "" {
		return nil
	}
	p.say(State{Status: Extracting, Done: p.state.Done, Total: p.state.Total})
	if p.opts.Progress != nil {
		p.opts.Progress(atoll.Progress{Phase: string(Extracting), Item: derived})
	}
	return p.derive(ctx, m, have, dir)
}

// derive makes the kernel's ELF file from the kernel. One that is another is fetched.
func (p *pull) derive(ctx context.Context, m *Manifest, have map[string]string, dir string) error {
	f := *m.Kernel.ELF
	k, err := readKernel(filepath.Join(dir, m.Kernel.Name))
	if err == nil {
		if elf, err := k.vmlinux(); err == nil && elf != nil && digestOf(elf) == f.Digest {
			return os.WriteFile(filepath.Join(dir, f.Name), elf, 0o644)
		}
	}
	p.say(State{Status: Downloading, Done: p.state.Done, Total: p.state.Total + f.Size})
	return p.file(ctx, f, have, dir)
}

// have is where the store has files, by digest.
func (s *Store) have() (map[string]string, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, b := range list {
		for _, f := range b.files() {
			m[f.Digest] = b.Path(f)
		}
	}
	return m, nil
}

// file puts one file into dir.
func (p *pull) file(ctx context.Context, f File, have map[string]string, dir string) error {
	to := filepath.Join(dir, f.Name)
	if from := have[f.Digest]; from != "" && os.Link(from, to) == nil {
		p.advance(f.Name, int64(f.Size))
		return nil
	}
	if p.base != nil {
		return p.fetch(ctx, f, to)
	}
	from := filepath.Join(p.dir, f.Name)
	fi, err := os.Stat(from)
	if err != nil {
		return damaged(err, "the bundle is not whole")
	}
	if fi.Size() != int64(f.Size) {
		return damaged(nil, "has %d bytes and should have %d", fi.Size(), int64(f.Size))
	}
	digest, err := copyFile(ctx, to, from)
	if err != nil {
		return err
	}
	if digest != f.Digest {
		return damaged(nil, "has digest %s and should have %s", digest, f.Digest)
	}
	p.advance(f.Name, int64(f.Size))
	return nil
}

// fetch fetches a file, or what is missing of it.
func (p *pull) fetch(ctx context.Context, f File, to string) error {
	unlock, err := p.s.lock(ctx, file(f.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	partial := p.s.path(partialsDir, file(f.Digest))
	for again := false; ; again = true {
		resumed, err := p.complete(ctx, f, partial)
		if err != nil {
			return err
		}
		digest, err := digestOfFile(ctx, partial)
		if err != nil {
			return err
		}
		if digest == f.Digest {
			return fsutil.Rename(partial, to)
		}
		if err := os.Remove(partial); err != nil {
			return err
		}
		p.advance(f.Name, -int64(f.Size))
		if !resumed || again {
			return damaged(nil, "has digest %s and should have %s", digest, f.Digest)
		}
		// What was there from before may have been torn by a crash.
	}
}

func digestOfFile(ctx context.Context, name string) (string, error) {
	f, err := measure(filepath.Dir(name), filepath.Base(name))
	return f.Digest, cmp.Or(ctx.Err(), err)
}

// complete makes partial have all bytes of f, and reports whether it had some.
func (p *pull) complete(ctx context.Context, f File, partial string) (resumed bool, err error) {
	out, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return false, err
	}
	defer func() {
		if err1 := out.Close(); err == nil {
			err = err1
		}
	}()
	at, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	if at > int64(f.Size) {
		at = 0
	}
	if resumed = at > 0; resumed {
		p.advance(f.Name, at)
	}
	restart := func() error {
		p.advance(f.Name, -at)
		at = 0
		return out.Truncate(0)
	}
	if at == 0 {
		if err := out.Truncate(0); err != nil {
			return false, err
		}
	}
	err = p.retry(ctx, func() (int64, error) {
		if at == int64(f.Size) {
			return 0, nil
		}
		resp, err := p.get(ctx, f.Name, at)
		if err != nil {
			var st statusError
			if errors.As(err, &st) && st.code == http.StatusRequestedRangeNotSatisfiable {
				return 0, cmp.Or(restart(), error(errShort))
			}
			return 0, err
		}
		defer resp.Body.Close()
		if at > 0 && (resp.StatusCode != http.StatusPartialContent || !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", at))) {
			if err := restart(); err != nil {
				return 0, err
			}
			if resp.StatusCode == http.StatusPartialContent {
				return 0, errShort // of another part than was asked for
			}
		}
		if _, err := out.Seek(at, io.SeekStart); err != nil {
			return 0, err
		}
		began := at
		buf := make([]byte, 256<<10)
		for {
			n, err := resp.Body.Read(buf)
			if int64(n) > int64(f.Size)-at {
				return 0, damaged(nil, "is longer than %d bytes", int64(f.Size))
			}
			if n > 0 {
				if _, err := out.Write(buf[:n]); err != nil {
					return 0, err
				}
				at += int64(n)
				p.advance(f.Name, int64(n))
			}
			switch {
			case err == io.EOF && at == int64(f.Size):
				return at - began, nil
			case err == io.EOF:
				return at - began, errShort
			case err != nil:
				return at - began, &brokenError{err}
			}
		}
	})
	return resumed, err
}

// errShort says that a file came to its end too early.
var errShort = &brokenError{io.ErrUnexpectedEOF}

// A brokenError is a failure of the connection.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// A statusError is an answer other than the file.
type statusError struct {
	code   int
	status string
}

func (e statusError) Error() string { return "the server says " + e.status }

func (p *pull) get(ctx context.Context, name string, at int64) (*http.Response, error) {
	u := p.base.JoinPath(name)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // what is compressed on the way has no ranges
	if at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", at))
	}
	resp, err := p.s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent && at > 0 {
		return resp, nil
	}
	resp.Body.Close()
	return nil, statusError{resp.StatusCode, resp.Status}
}

// retry calls f, which returns how many bytes it has got, until it succeeds or fails
// for good.
func (p *pull) retry(ctx context.Context, f func() (int64, error)) error {
	wait := p.s.wait
	for n := 1; ; n++ {
		got, err := f()
		if err == nil || ctx.Err() != nil || !transient(err) {
			return p.refused(err)
		}
		if got >= advanced {
			n, wait = 1, p.s.wait
		}
		if n == tries {
			return p.refused(err)
		}
		p.s.log.Debug("pull", "source", p.source, "try", n, "err", err, "wait", wait)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait *= 2
	}
}

// transient reports whether a request that failed so may succeed when it is repeated.
func transient(err error) bool {
	var st statusError
	if errors.As(err, &st) {
		switch st.code {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusRequestedRangeNotSatisfiable:
			return true
		}
		return st.code >= 500 && st.code != http.StatusNotImplemented
	}
	var request *url.Error
	var broken *brokenError
	if errors.As(err, &broken) {
		return true
	}
	if !errors.As(err, &request) {
		return false
	}
	var dns *net.DNSError
	var operation *net.OpError
	return request.Timeout() || errors.As(err, &operation) && !(errors.As(err, &dns) && dns.IsNotFound) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// refused gives the failure of a request its kind.
func (p *pull) refused(err error) error {
	var st statusError
	var request *url.Error
	var broken *brokenError
	kind := atoll.ErrUnavailable
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission) || fsutil.IsFull(err):
		return err
	case errors.As(err, &st):
		switch {
		case st.code == http.StatusNotFound || st.code == http.StatusGone:
			kind = atoll.ErrNotExist
		case st.code == http.StatusUnauthorized || st.code == http.StatusForbidden:
			kind = atoll.ErrDenied
		case st.code < 500 && !transient(err):
			kind = atoll.ErrInvalid
		}
	case !errors.As(err, &request) && !errors.As(err, &broken):
		return err
	}
	return atoll.E("pull", p.source, kind, err)
}
