//go:build !unix

package api

// maxDescriptors returns how many descriptors this process can have.
func maxDescriptors() int { return 4096 }
