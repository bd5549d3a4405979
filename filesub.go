package atoll

// A SubFS is an FS that can confine itself to a directory. The FS of a sandbox
// with Caps.Files is one, and so is what its Sub returns.
type SubFS interface {
	// Sub is SubFiles of this FS.
	Sub(dir string) FS
}

// SubFiles returns fs confined to what is below dir, for callers that have to
// stay there although the names they are given, or the processes inside, are
// not to be trusted. The result holds no resources between calls, and needs no
// closing.
//
// dir is absolute or relative to what fs's own names are relative to. It is
// found anew at each call, by following links; from then on the call works on
// that directory, whatever takes its name. It need not be there before: a call
// that does not find it is ErrNotExist, one that finds no directory ErrInvalid.
// No call makes it, moves it or removes it.
//
// Relative names are relative to dir. Absolute ones must be dir, as it is named
// here, or below it. FileInfo.Path and FileEvent.Path are absolute, as ever.
//
// A name that leads out of dir is ErrDenied, for every method, before anything
// is read, made or changed, and without a word of what is there: by "..", as an
// absolute name, or by a symbolic link, be it the last element where links are
// followed, one on the way, one to nothing, or the first of a chain. A relative
// link that leads out leads out, even if it comes back. An absolute link to dir
// or below it is followed. Stat, Rename and Remove do not follow a link that is
// the last element: that one may lead anywhere. So may links that ReadTar makes.
//
// This is no check that comes before: nothing outside of dir is read, created or
// changed, whatever a process does at the same moment, such as putting links
// where directories were. What is below dir is what can be found there; that is
// a hard link to a file elsewhere, too, a mount, or a directory that is moved
// out while a call is at work in it.
//
// Each method of the result is ErrUnsupported where fs is no SubFS.
func SubFiles(fs FS, dir string) FS {
	if s, ok := fs.(SubFS); ok {
		return s.Sub(dir)
	}
	return noFS{dir}
}

// Sub implements SubFS: there is still none.
func (n noFS) Sub(string) FS { return n }

var _ SubFS = noFS{}
