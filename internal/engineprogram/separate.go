//go:build linux && !embedengine

package engineprogram

// findPacked returns an empty program: this one was built without them.
func (p Program) findPacked() packedProgram { return packedProgram{name: string(p)} }
