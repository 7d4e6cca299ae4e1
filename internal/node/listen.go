package node

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// listenBoth opens UDP and TCP on one address and one port number. Port 0 takes a
// number that is free for both.
func listenBoth(addr string) (net.PacketConn, net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	// A number the system gives for TCP may be taken for UDP; other numbers are not.
	const attempts = 16
	for i := 0; ; i++ {
		tcp, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, nil, busy("listen", addr, err)
		}
		same := net.JoinHostPort(host, strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port))
		udp, err := net.ListenPacket("udp", same)
		if err == nil {
			return udp, tcp, nil
		}
		err = errors.Join(err, tcp.Close())
		if port != "0" || i == attempts {
			return nil, nil, busy("listen", addr, err)
		}
	}
}

// busy names the setting whose address cannot be listened on.
func busy(setting, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s %s: another process listens there; stop it or choose another address: %w", setting, addr, err)
	}
	return fmt.Errorf("%s %s: %w", setting, addr, err)
}
