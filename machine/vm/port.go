package vm

import "github.com/seed46cd37a8/atoll"

// Ports of Atoll's guests.
const (
	// PortAPI serves the API of the guest's sandbox. The seeds use the same number.
	PortAPI uint32 = 52
	// PortControl takes the host's Orders, such as the guest's Setup.
	PortControl uint32 = 51
	// PortPowerOff makes the guest power off: it hangs up when it has received the request.
	PortPowerOff uint32 = 50
	// PortNetwork is the network card of a guest whose driver has Caps.Frames, after a Setup with a
	// network: connections carry Frames. One host at a time can use it.
	PortNetwork uint32 = 49
	// PortAgent is forwarded to the TCP port of that number, on which an agent listens.
	PortAgent uint32 = atoll.AgentPort
	// PortDocker is forwarded to the socket of the Docker Engine in a project's machine.
	PortDocker uint32 = 2375
)
