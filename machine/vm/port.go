package vm

import "github.com/seed46cd37a8/atoll"

// Ports of guests that are ours.
const (
	// PortAPI serves the API of the guest's sandbox. The number is that of the seeds.
	PortAPI uint32 = 52
	// PortControl is where a host tells the guest what it is.
	PortControl uint32 = 51
	// PortPowerOff has the guest power off: it hangs up when it has heard that.
	PortPowerOff uint32 = 50
	// PortNetwork is the network card of a guest whose driver has Caps.Frames, once it was
	// set up with a network: what is sent there are Frames. One host has it at a time.
	PortNetwork uint32 = 49
	// PortAgent is joined to the TCP port of that number, on which an agent listens.
	PortAgent uint32 = atoll.AgentPort
	// PortDocker is joined to the socket of the Docker Engine in a project's machine.
	PortDocker uint32 = 2375
)
