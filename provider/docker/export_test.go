package docker

// OnStep has step asked before each step of a creation.
func OnStep(opts *Options, step func(name string) error) { opts.step = step }

// GuestPath is where the guest's program is in a container.
const GuestPath = guestPath
