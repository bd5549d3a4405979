// Package atoll gives every agent a computer of its own, on any machine.
//
// It is the dictionary of the project: the types that describe isolated
// sandboxes and the small interfaces that every provider of them, every layer
// around a provider, the HTTP server and its client implement alike. It
// imports only the standard library.
//
// A [Provider] makes sandboxes (gVisor, Docker, a microVM, ...). A [Sandbox]
// is one isolated environment with an id. A [Process] is one command that runs
// in it; a process with a terminal is a terminal. Abilities that not every
// provider has are small optional interfaces ([Filer], [Dialer], [Pauser],
// ...); never assert one of them, call its helper ([Files], [Dial], [Pause],
// ...), which answers for those that lack it.
//
//	sb, err := provider.Create(ctx, &atoll.Spec{Name: "web"})
//	if err != nil {
//		return err
//	}
//	defer sb.Remove(ctx, atoll.RemoveVolumes())
//	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"uname", "-a"}})
package atoll
