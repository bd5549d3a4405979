package api

import (
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// FakeID is the id of a fake's one sandbox.
const FakeID = fakeID

// NewFake returns a provider of one sandbox with the files fs.
func NewFake(fs atoll.FS) atoll.Provider {
	f := newFake()
	f.box.fs = fs
	return f
}

// VerifyEvery sets the interval between calls of Verify.
func VerifyEvery(opts *Options, interval time.Duration) { opts.verifyEvery = interval }

// Clients on a slow machine take longer to read the reason why the server closes.
func init() { closeGrace = testenv.Scale(closeGrace) }
