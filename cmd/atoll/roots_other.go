//go:build !linux

package main

// trustFallbackRoots does nothing: macOS and Windows verify certificates themselves.
func trustFallbackRoots() {}
