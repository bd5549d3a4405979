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

// A State is the progress of a Pull.
type State struct {
	Status Status      `json:"status"`
	Done   atoll.Bytes `json:"done,omitempty"`
	Total  atoll.Bytes `json:"total,omitempty"`
	Error  string      `json:"error,omitempty"` // of a Pull that failed
}

// A Status names the stage of a Pull.
type Status string

// The statuses.
const (
	NotStarted  Status = "not_started"
	Downloading Status = "downloading"
	Extracting  Status = "extracting"
	Ready       Status = "ready"
	Failed      Status = "failed"
)

// PullOptions configure one Pull.
type PullOptions struct {
	// Name is the name of the bundle in the store. Empty means the last element of the
	// source's path.
	Name string
	// Digest is the required digest of the bundle: Pull refuses another bundle. Empty
	// means any, which Pull allows over TLS, from this machine, and from a directory.
	Digest string
	// Progress may be nil. Pull calls it from the calling goroutine.
	Progress func(atoll.Progress)
}

const (
	maxAttempts   = 5       // to fetch a file, the first included
	progressBytes = 1 << 20 // an attempt that fetched so many bytes resets the count of attempts
)

// Pull fetches the bundle at source into the store. source is the URL of a directory, or
// of the manifest in it, or a directory of this machine. Pull refuses files that do not
// match their digest. It does not fetch files that the store has, and resumes partly
// fetched ones, also after ctx has ended or the process has died. It tries requests 5
// times, after 5, 10, 20 and 40 seconds, if they fail for lack of a connection, or with a
// status of 408, 429 or 5xx. It extracts the kernel that Firecracker boots from the
// other one.
//
// Kinds: ErrInvalid (the source, or a damaged bundle), ErrNotExist, ErrDenied,
// ErrUnavailable (no answer), ErrExhausted (no space left).
func (s *Store) Pull(ctx context.Context, source string, opts PullOptions) (*Bundle, error) {
	p := &pull{s: s, source: source, opts: opts}
	p.setState(State{Status: Downloading})
	b, err := p.fetchBundle(ctx)
	if err != nil && ctx.Err() != nil {
		err = atoll.E("pull", source, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	if err = s.wrapError("pull", source, err); err != nil {
		p.state.Status, p.state.Error = Failed, err.Error()
		p.setState(p.state)
		return nil, err
	}
	p.setState(State{Status: Ready, Done: p.state.Total, Total: p.state.Total})
	return b, nil
}

// State returns the progress of the last Pull of source in this Store.
func (s *Store) State(source string) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, ok := s.pulls[source]; ok {
		return st
	}
	return State{Status: NotStarted}
}

// A pull is one call of Store.Pull.
type pull struct {
	s          *Store
	source     string
	opts       PullOptions
	base       *url.URL // of the files; nil for a directory
	dir        string   // of the files, if the source is a directory
	state      State
	reportedAt time.Time
}

func (p *pull) setState(st State) {
	p.state = st
	p.s.mu.Lock()
	p.s.pulls[p.source] = st
	p.s.mu.Unlock()
}

// addProgress adds n bytes to the progress, and reports it.
func (p *pull) addProgress(item string, n int64) {
	p.state.Done += atoll.Bytes(n)
	p.setState(p.state)
	if p.opts.Progress != nil && time.Since(p.reportedAt) > 100*time.Millisecond {
		p.reportedAt = time.Now()
		p.opts.Progress(atoll.Progress{Phase: string(p.state.Status), Item: item, Done: int64(p.state.Done), Total: int64(p.state.Total)})
	}
}

// resolveSource checks the options and sets base or dir from the source.
func (p *pull) resolveSource() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("pull", p.source, atoll.ErrInvalid, format, args...)
	}
	if p.opts.Digest != "" && !digestForm().MatchString(p.opts.Digest) {
		return bad("%q is not a digest: write it like sha256:0123...", p.opts.Digest)
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
	if u.Scheme == "http" && !isLoopback(u.Hostname()) && p.opts.Digest == "" {
		return bad("over plain HTTP anybody could change the bundle: use https, or name the digest of the bundle (--digest sha256:...)")
	}
	if path.Base(u.Path) == manifestName {
		u.Path = path.Dir(u.Path)
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/", ""
	p.base = u
	p.opts.Name = cmp.Or(p.opts.Name, path.Base(u.Path))
	return checkName(p.opts.Name)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkRedirect refuses redirects from TLS to plain HTTP, and to this machine.
func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) >= 10:
		return errors.New("too many redirects")
	case req.URL.Scheme != "https" && via[0].URL.Scheme == "https":
		return errors.New("redirect from https to plain HTTP refused")
	case req.URL.Scheme != "https" && isLoopback(req.URL.Hostname()) && !isLoopback(via[0].URL.Hostname()):
		return errors.New("redirect to this machine refused")
	}
	return nil
}

func (p *pull) fetchBundle(ctx context.Context) (*Bundle, error) {
	if err := p.resolveSource(); err != nil {
		return nil, err
	}
	raw, err := p.fetchManifest(ctx)
	if err != nil {
		return nil, err
	}
	digest := digestOf(raw)
	if p.opts.Digest != "" && p.opts.Digest != digest {
		return nil, newDamageError(nil, "it is bundle %s, not %s", digest, p.opts.Digest)
	}
	m, err := parseManifest(raw)
	if err != nil {
		return nil, err
	}
	if m.Arch != runtime.GOARCH {
		return nil, newDamageError(nil, "the bundle is for %s, but this machine is %s", m.Arch, runtime.GOARCH)
	}
	unlock, err := p.s.acquireLock(ctx, "pull-"+digestName(digest))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := p.s.readBundle(digest); err == nil {
		if err := p.s.setName(p.opts.Name, digest); err != nil {
			return nil, err
		}
		return p.s.readBundle(digest)
	}
	t, err := p.s.newTempDir()
	if err != nil {
		return nil, err
	}
	defer t.close()
	dir := filepath.Join(t.dir, "bundle")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.placeFiles(ctx, m, dir); err != nil {
		return nil, err
	}
	return p.s.installBundle(dir, raw, p.opts.Name)
}

// fetchManifest fetches the manifest.
func (p *pull) fetchManifest(ctx context.Context) ([]byte, error) {
	if p.base == nil {
		f, err := os.Open(filepath.Join(p.dir, manifestName))
		if err != nil {
			return nil, atoll.Errorf("pull", p.source, atoll.KindOf(err), "there is no bundle: %w", err)
		}
		defer f.Close()
		return readLimited(f)
	}
	var raw []byte
	err := p.withRetry(ctx, func() (int64, error) {
		resp, err := p.sendRequest(ctx, manifestName, 0)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if raw, err = readLimited(resp.Body); err != nil && !errors.As(err, new(*damageError)) {
			err = &brokenError{err}
		}
		return 0, err
	})
	return raw, err
}

func readLimited(r io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err == nil && len(raw) > maxManifest {
		return nil, newDamageError(nil, "the manifest is larger than %d bytes", maxManifest)
	}
	return raw, err
}

// placeFiles puts the files of m into dir. have is the result of filesByDigest.
func (p *pull) placeFiles(ctx context.Context, m *Manifest, dir string) error {
	have, err := p.s.filesByDigest()
	if err != nil {
		return err
	}
	derived := ""
	for _, f := range m.listFiles() {
		if m.Kernel.ELF != nil && f.Name == m.Kernel.ELF.Name {
			derived = f.Name
			continue
		}
		p.state.Total += f.Size
	}
	for _, f := range m.listFiles() {
		if f.Name == derived {
			continue
		}
		if err := p.placeFile(ctx, f, have, dir); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if derived == "" {
		return nil
	}
	p.setState(State{Status: Extracting, Done: p.state.Done, Total: p.state.Total})
	if p.opts.Progress != nil {
		p.opts.Progress(atoll.Progress{Phase: string(Extracting), Item: derived})
	}
	return p.extractKernel(ctx, m, have, dir)
}

// extractKernel extracts the ELF file from the kernel. If that gives another file than m
// has, it fetches the file.
func (p *pull) extractKernel(ctx context.Context, m *Manifest, have map[string]string, dir string) error {
	f := *m.Kernel.ELF
	k, err := readKernel(filepath.Join(dir, m.Kernel.Name))
	if err == nil {
		if elf, err := k.extractELF(); err == nil && elf != nil && digestOf(elf) == f.Digest {
			return os.WriteFile(filepath.Join(dir, f.Name), elf, 0o644)
		}
	}
	p.setState(State{Status: Downloading, Done: p.state.Done, Total: p.state.Total + f.Size})
	return p.placeFile(ctx, f, have, dir)
}

// filesByDigest returns the paths of all files of bundles in the store.
func (s *Store) filesByDigest() (map[string]string, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, b := range list {
		for _, f := range b.listFiles() {
			m[f.Digest] = b.Path(f)
		}
	}
	return m, nil
}

// placeFile puts one file into dir: a link to a file in have, else a copy or a download.
func (p *pull) placeFile(ctx context.Context, f File, have map[string]string, dir string) error {
	to := filepath.Join(dir, f.Name)
	if from := have[f.Digest]; from != "" && os.Link(from, to) == nil {
		p.addProgress(f.Name, int64(f.Size))
		return nil
	}
	if p.base != nil {
		return p.fetchFile(ctx, f, to)
	}
	from := filepath.Join(p.dir, f.Name)
	fi, err := os.Stat(from)
	if err != nil {
		return newDamageError(err, "the bundle is incomplete")
	}
	if fi.Size() != int64(f.Size) {
		return newDamageError(nil, "has %d bytes and should have %d", fi.Size(), int64(f.Size))
	}
	digest, err := copyFile(ctx, to, from)
	if err != nil {
		return err
	}
	if digest != f.Digest {
		return newDamageError(nil, "has digest %s and should have %s", digest, f.Digest)
	}
	p.addProgress(f.Name, int64(f.Size))
	return nil
}

// fetchFile fetches a file, or the missing part of it.
func (p *pull) fetchFile(ctx context.Context, f File, to string) error {
	unlock, err := p.s.acquireLock(ctx, digestName(f.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	partial := p.s.storePath(partialsDir, digestName(f.Digest))
	for again := false; ; again = true {
		resumed, err := p.completeFile(ctx, f, partial)
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
		p.addProgress(f.Name, -int64(f.Size))
		if !resumed || again {
			return newDamageError(nil, "has digest %s and should have %s", digest, f.Digest)
		}
		// A crash may have damaged the part from an earlier attempt.
	}
}

func digestOfFile(ctx context.Context, name string) (string, error) {
	f, err := describeFile(filepath.Dir(name), filepath.Base(name))
	return f.Digest, cmp.Or(ctx.Err(), err)
}

// completeFile fetches the missing bytes of f into the file partial, and reports whether
// the file had some before.
func (p *pull) completeFile(ctx context.Context, f File, partial string) (resumed bool, err error) {
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
		p.addProgress(f.Name, at)
	}
	restart := func() error {
		p.addProgress(f.Name, -at)
		at = 0
		return out.Truncate(0)
	}
	if at == 0 {
		if err := out.Truncate(0); err != nil {
			return false, err
		}
	}
	err = p.withRetry(ctx, func() (int64, error) {
		if at == int64(f.Size) {
			return 0, nil
		}
		resp, err := p.sendRequest(ctx, f.Name, at)
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
				return 0, errShort // the server sent another range
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
				return 0, newDamageError(nil, "is longer than %d bytes", int64(f.Size))
			}
			if n > 0 {
				if _, err := out.Write(buf[:n]); err != nil {
					return 0, err
				}
				at += int64(n)
				p.addProgress(f.Name, int64(n))
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

// errShort says that a response ended too early.
var errShort = &brokenError{io.ErrUnexpectedEOF}

// A brokenError is a connection that failed during a response.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// A statusError is a response without the file.
type statusError struct {
	code   int
	status string
}

func (e statusError) Error() string { return "the server answers " + e.status }

func (p *pull) sendRequest(ctx context.Context, name string, at int64) (*http.Response, error) {
	u := p.base.JoinPath(name)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // compressed responses have no ranges
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

// withRetry calls f, which returns the number of bytes that it has fetched, until it
// succeeds, fails permanently, or has failed maxAttempts times.
func (p *pull) withRetry(ctx context.Context, f func() (int64, error)) error {
	wait := p.s.wait
	for n := 1; ; n++ {
		got, err := f()
		if err == nil || ctx.Err() != nil || !isTransient(err) {
			return p.requestError(err)
		}
		if got >= progressBytes {
			n, wait = 1, p.s.wait
		}
		if n == maxAttempts {
			return p.requestError(err)
		}
		p.s.log.Debug("pull", "source", p.source, "try", n, "err", err, "wait", wait)
		if err := sleepContext(ctx, wait); err != nil {
			return err
		}
		wait *= 2
	}
}

// isTransient reports whether a request that failed with err may succeed when repeated.
func isTransient(err error) bool {
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

// requestError gives the failure of a request its kind; nil for a nil err.
func (p *pull) requestError(err error) error {
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
		case st.code < 500 && !isTransient(err):
			kind = atoll.ErrInvalid
		}
	case !errors.As(err, &request) && !errors.As(err, &broken):
		return err
	}
	return atoll.E("pull", p.source, kind, err)
}
