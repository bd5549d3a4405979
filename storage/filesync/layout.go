package filesync

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// A Layout says how a push stores the content of files. Each layout is readable with
// each setting.
type Layout string

// The layouts.
const (
	// LayoutPacked shares the content of unchanged files between versions, and packs
	// small files into larger objects.
	LayoutPacked Layout = "packed"
	// LayoutFiles stores each file of each version as an object of its own, at
	// {version}/{path}, so that other programs can read them. A push uploads all files.
	// Other programs may write versions, too: state files without "push" are theirs.
	LayoutFiles Layout = "files"
)

// CheckLayout returns an error unless l is a layout or "".
func CheckLayout(l Layout) error {
	switch l {
	case "", LayoutPacked, LayoutFiles:
		return nil
	}
	return atoll.Errorf("sync", "", atoll.ErrInvalid, "layout %q: write %s or %s", string(l), LayoutPacked, LayoutFiles)
}

// setBucket sets the bucket, and that of LayoutFiles: the same, unless it stores objects in
// a form that other programs do not read.
func (r *Remote) setBucket(b objectstore.Bucket) {
	r.bucket, r.files = b, b
	if p, ok := b.(interface{ Plain() objectstore.Bucket }); ok {
		r.files, r.apart = p.Plain(), true
	}
}

// openObject reads an object of a version, wherever it is.
func (r *Remote) openObject(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	body, _, err := r.bucket.Get(ctx, key, offset, length)
	if r.apart && atoll.KindOf(err) == atoll.ErrNotExist {
		if plain, _, plainErr := r.files.Get(ctx, key, offset, length); atoll.KindOf(plainErr) != atoll.ErrNotExist {
			return plain, plainErr
		}
	}
	return body, err
}

// listFolders yields what listVersions does, by the names of folders: no request then
// lists the files of LayoutFiles. It reports false if the bucket cannot do that, or if
// the other way is quicker.
func (r *Remote) listFolders(ctx context.Context) (seq iter.Seq2[Info, error], ok bool) {
	var listers []objectstore.FolderLister
	for _, b := range []objectstore.Bucket{r.bucket, r.files} {
		l, ok := b.(objectstore.FolderLister)
		if !ok || !r.apart && r.opts.Layout != LayoutFiles {
			return nil, false
		}
		listers = append(listers, l)
	}
	return func(yield func(Info, error) bool) {
		var names []string
		for _, l := range listers {
			some, err := l.Folders(ctx, r.prefix)
			if err != nil {
				yield(Info{}, err)
				return
			}
			names = append(names, some...)
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			v, ok := parseNumber(name)
			if !ok {
				continue
			}
			o, err := r.bucket.Stat(ctx, r.stateKey(v))
			if atoll.KindOf(err) == atoll.ErrNotExist {
				o, err = r.files.Stat(ctx, r.stateKey(v))
			}
			if atoll.KindOf(err) == atoll.ErrNotExist {
				continue
			}
			if !yield(Info{Version: v, Pushed: o.Modified, Size: o.Size}, err) || err != nil {
				return
			}
		}
	}, true
}

// parseNumber returns the number of a version.
func parseNumber(name string) (v int64, ok bool) {
	v, err := strconv.ParseInt(name, 10, 64)
	return v, err == nil && v > 0 && strconv.FormatInt(v, 10) == name
}

// isForeign reports whether another program has written a version: it is complete
// although no record names it.
func (r *Remote) isForeign(ctx context.Context, v int64) (bool, error) {
	body, err := r.openObject(ctx, r.stateKey(v), 0, maxEntry)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer body.Close()
	in, err := newStateReader(bufio.NewReader(body))
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		r.log.Warn("sync: a version has an unusable state file", "at", r.String(), "version", v, "err", err)
		return false, nil
	}
	return in.head.Push == "", nil
}

// readNewest is readLatest, and finds newer versions of other programs, if there may be
// any.
func (r *Remote) readNewest(ctx context.Context) (*latestRecord, error) {
	l, err := r.readLatest(ctx)
	if err == nil {
		err = r.findForeign(ctx, l)
	}
	return l, err
}

// findForeign sets the newest version of another program in a record.
func (r *Remote) findForeign(ctx context.Context, l *latestRecord) error {
	l.foreign = 0
	if l.Version > 0 && r.opts.Layout != LayoutFiles {
		return nil
	}
	var beyond []int64
	for v, err := range r.listVersions(ctx) {
		if err != nil {
			return err
		}
		if v.Version > l.Version && v.Version < maxNumber && v.Size > 0 {
			beyond = append(beyond, v.Version)
		}
	}
	slices.Sort(beyond)
	for _, v := range slices.Backward(beyond) {
		foreign, err := r.isForeign(ctx, v)
		if err != nil {
			return err
		}
		if foreign {
			l.foreign = v
			return nil
		}
	}
	return nil
}

// newestNumber returns the number of the newest version; 0 if there is none.
func (l *latestRecord) newestNumber() int64 { return max(l.Version, l.foreign) }

// newestPush returns the id of the push that made it, as pushOf does, and newestSum the
// checksum of its state file, if that is known.
func (l *latestRecord) newestPush() string {
	if l.foreign > 0 {
		return pushOf(l.foreign, &State{})
	}
	return l.Push
}

func (l *latestRecord) newestSum() string {
	if l.foreign > 0 {
		return ""
	}
	return l.SHA256
}

// putState writes the state file of a new version.
func (p *push) putState(version, size int64) error {
	b := p.r.bucket
	if p.r.opts.Layout == LayoutFiles {
		b = p.r.files
	}
	_, err := b.Put(p.ctx, p.r.stateKey(version), p.state, size, objectstore.Condition{Absent: true})
	return err
}

// plainKey returns the key of a file in LayoutFiles. It reports false if the path is not
// a valid key, so that the file has to be packed.
func (p *push) plainKey(path string) (string, bool) {
	key := p.r.prefix + strconv.FormatInt(p.version, 10) + "/" + path
	return key, p.r.opts.Layout == LayoutFiles && isPlainPath(path) && objectstore.CheckKey(key) == nil
}

// isPlainPath reports whether a path may be the name of a file of its own in a store, which may be a directory on any
// system. Other paths would lead elsewhere on Windows, or take the place of a state file or of an object of a Dir.
func isPlainPath(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if strings.ContainsAny(name, `\:+`) || strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") || strings.EqualFold(name, StateName) {
			return false
		}
	}
	return true
}

// storeContent uploads a file's bytes to a key of its own, or packs them.
func (p *push) storeContent(ctx context.Context, s *pendingEntry, body io.ReadSeeker) error {
	f := &s.file
	key, plain := p.plainKey(f.Path)
	if !plain && p.r.opts.Layout == LayoutFiles {
		p.updateStats(func(*Stats) { p.packed++ })
	}
	if p.dry {
		return nil
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return bucketError{err}
	}
	if plain {
		switch _, err := p.r.files.Put(ctx, key, body, f.Size, objectstore.Condition{Absent: true}); atoll.KindOf(err) {
		case "":
			p.r.opts.step("object")
			f.Object, f.Offset = "", 0
			p.countUpload(f.Size)
			return nil
		case atoll.ErrConflict: // another program's, or a name that differs in case only
			p.updateStats(func(*Stats) { p.packed++ })
			if _, err := body.Seek(0, io.SeekStart); err != nil {
				return bucketError{err}
			}
		default:
			return bucketError{err}
		}
	}
	switch {
	case f.Size > maxPackedSize:
		name := p.packer.nextName()
		if err := p.uploadObject(ctx, name, body, f.Size); err != nil {
			return bucketError{err}
		}
		f.Object, f.Offset = name, 0
	default:
		b, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		at, err := p.packer.addFile(b)
		if err != nil {
			return bucketError{err}
		}
		f.Object, f.Offset = at.object, at.offset
		return nil
	}
	p.countUpload(f.Size)
	return nil
}

// needsCopy reports whether the content of an entry of the version before is at a key of
// that version, so that the new version needs a copy.
func (p *push) needsCopy(f *File) bool {
	_, plain := p.plainKey(f.Path)
	return !p.dry && f.isRegular() && f.Object == "" && (f.Size > 0 || plain)
}

// copyBefore stores the content of an entry of the version before for the new version.
func (p *push) copyBefore(ctx context.Context, s *pendingEntry) error {
	body, err := p.r.openFile(ctx, p.base, &s.file)
	if kind := atoll.KindOf(err); kind == atoll.ErrNotExist || kind == atoll.ErrInternal {
		p.addError(s.file.Path, err)
		s.gone = true
		return nil
	}
	if err != nil {
		return bucketError{err}
	}
	defer body.Close()
	in, ok := body.(io.ReadSeeker)
	if !ok { // it is empty
		in = bytes.NewReader(nil)
	}
	return p.storeContent(ctx, s, in)
}

// writeVersion writes the state files, and uploads content. In LayoutFiles, it first
// finds out whether anything has changed: a new version needs all files.
func (p *push) writeVersion(now *latestRecord) error {
	p.dry = p.r.opts.Layout == LayoutFiles && now.newestNumber() > 0
	for {
		err := p.writeWith(now)
		if err != nil || !p.dry || !p.changed.Load() {
			p.reportPacked()
			return err
		}
		p.dry, p.packed, p.stats = false, 0, &Stats{}
		p.scan.reportUnread(p.stats)
		for _, s := range []*spool{p.state, p.local} {
			_, seekErr := s.Seek(0, io.SeekStart)
			if err := cmp.Or(seekErr, s.Truncate(0)); err != nil {
				return err
			}
		}
	}
}

// writeWith is writeVersion on top of the latest version.
func (p *push) writeWith(now *latestRecord) error {
	remote, err := p.openLatest(now)
	if err != nil {
		return err
	}
	defer remote.closeVersion()
	return p.writeState(remote)
}

// reportPacked logs that other programs cannot read some files.
func (p *push) reportPacked() {
	if p.packed > 0 && !p.dry {
		p.r.log.Warn("push: paths that are no keys of object storage were packed: other programs do not find them", "at", p.r.String(), "files", p.packed)
	}
}

// deleteVersion removes the files of a version in LayoutFiles, and then nothing of the
// version is left. It returns their number and bytes.
func (r *Remote) deleteVersion(ctx context.Context, n int64) (files int, size int64, err error) {
	below := r.prefix + strconv.FormatInt(n, 10) + "/"
	buckets := []objectstore.Bucket{r.files}
	if r.apart {
		buckets = append(buckets, r.bucket)
	}
	for _, b := range buckets {
		if err := b.Delete(ctx, r.stateKey(n)); err != nil { // first: what is incomplete is no version
			return files, size, err
		}
	}
	for _, b := range buckets {
		var keys []string
		for o, err := range b.List(ctx, below) {
			if err != nil {
				return files, size, err
			}
			keys = append(keys, o.Key)
			size += o.Size
		}
		if err := b.Delete(ctx, keys...); err != nil {
			return files, size, err
		}
		files += len(keys)
	}
	return files, size, nil
}

// A splitState writes the state file of a version in LayoutFiles. Its files are regular
// files, as other programs expect, and directories and links are apart.
type splitState struct {
	*stateWriter
	others bytes.Buffer
}

func newSplitState(w io.Writer, head State) *splitState {
	return &splitState{stateWriter: newListWriter(w, head)}
}

// writeEntry writes the next entry.
func (s *splitState) writeEntry(f *File) error {
	if f.isRegular() {
		return s.stateWriter.writeEntry(f)
	}
	b, err := f.MarshalJSON()
	if s.others.Len() > 0 {
		s.others.WriteByte(',')
	}
	s.others.WriteByte('\n')
	s.others.Write(b)
	return errors.Join(err, s.err)
}

// finishState writes the end.
func (s *splitState) finishState() error {
	s.writeText("\n],\"others\":[")
	s.writeText(s.others.String())
	return s.stateWriter.finishState()
}

// An entryWriter writes a state file.
type entryWriter interface {
	writeEntry(f *File) error
	finishState() error
}

// newVersionWriter returns the writer of a version's state file.
func (p *push) newVersionWriter() entryWriter {
	head := p.scan.newHead(p.id)
	if p.r.opts.Layout == LayoutFiles {
		return newSplitState(p.state, head)
	}
	return newStateWriter(p.state, head)
}

// markVoid makes sure that a number never becomes a version: its state file is empty. files
// tells that a program with LayoutFiles may write the version. It leaves a version of another program.
func (r *Remote) markVoid(ctx context.Context, version int64, files bool) error {
	if foreign, err := r.isForeign(ctx, version); err != nil || foreign {
		return err
	}
	_, err := r.bucket.Put(ctx, r.stateKey(version), strings.NewReader(""), 0, objectstore.Condition{})
	if err == nil && files && r.apart {
		_, err = r.files.Put(ctx, r.stateKey(version), strings.NewReader(""), 0, objectstore.Condition{})
	}
	return err
}
