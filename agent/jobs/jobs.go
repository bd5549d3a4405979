// Package jobs runs one program in a container of its own and removes the container
// afterwards. Agents in compute mode use it. A Backend supplies the container: a sandbox of
// a provider, or an engine that has no sandboxes.
//
// Function In does the work inside the container for every backend, so that all backends
// return the same results.
package jobs

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Backend runs programs, any number at once.
type Backend interface {
	// Run runs a job in a container of its own, from the job's image, and removes
	// it. It blocks until the program has ended, all that it has started has been
	// killed, and the container is gone. When ctx ends first, the program is killed
	// and ctx's error returned. A program that ran has a Result, whatever its exit.
	//
	// Kinds: ErrCommandNotFound (the image has no such program), ErrUnsupported
	// (the spec asks for what the backend cannot do: nothing has run), ErrInvalid,
	// ErrNotExist (no such image), ErrDenied (the registry's answer), ErrUnavailable, ErrExhausted, ErrConflict (the
	// container ended while the program ran), ErrTimeout (not of the program, which has a
	// Result then, but of all around it).
	Run(ctx context.Context, job *Job) (*Result, error)

	// Close lets go of what the backend itself has, not of a provider that it was
	// given. Jobs that run are to have ended.
	Close() error
}

// A Job is a program and what it runs in. Whoever runs it does not change it.
type Job struct {
	// Spec is of the container: its image, network, resources, variables. Its work
	// directory is where the program starts, with Files. Its TTL, which is to be longer
	// than all that may take, ends what nobody is left to remove.
	Spec  atoll.Spec `json:"spec"`
	Files []File     `json:"files,omitempty"`

	// Install, unless empty, is run first. When it fails, the program is not run.
	Install []string `json:"install,omitempty"`

	Args []string `json:"args"`
	// Else is what to run in place of Args[0] where there is none; "" for nothing.
	Else string   `json:"else,omitempty"`
	Env  []string `json:"env,omitempty"` // besides the container's

	Timeout atoll.Duration `json:"timeout"` // of the program, and of Install

	// MaxOutput is how much of each stream is kept. Of the files that the program
	// makes, MaxFiles are told of, and each has its content that is not larger than
	// MaxFileSize, while all together are not larger than MaxContent.
	MaxOutput   int64 `json:"max_output"`
	MaxFiles    int   `json:"max_files"`
	MaxFileSize int64 `json:"max_file_size"`
	MaxContent  int64 `json:"max_content"`

	// Report, if it is not nil, is called now and then from one goroutine while
	// something runs, with the last line that it has printed. A backend that does not
	// see that before the end does not call it.
	Report func(took time.Duration, line string) `json:"-"`
}

// A File is one that the program finds.
type File struct {
	Name string `json:"name"` // relative to the work directory
	Data []byte `json:"data"`
}

// A Result is what came of a program.
type Result struct {
	Ran
	// NotInstalled says that this is of Install, which failed: the program did not run.
	NotInstalled bool `json:"not_installed,omitempty"`

	// Artifacts are the files in the work directory that the program has made or
	// changed, in order; those that a runtime keeps for itself are not among them.
	Artifacts []Artifact `json:"artifacts,omitempty"`
	// More says that there are more than MaxFiles of them.
	More bool `json:"more,omitempty"`
	// Unread says why Artifacts are not all, "" if they are.
	Unread string `json:"unread,omitempty"`
}

// An Artifact is a file that a program has left.
type Artifact struct {
	Path string `json:"path"` // relative to the work directory
	Size int64  `json:"size"`
	Read bool   `json:"read,omitempty"` // Data is its content; else it is too large
	Data []byte `json:"data,omitempty"`
}
