#!/bin/sh
# Without systemd, in a container for example, there is no service and no need for its user.
if command -v systemd-sysusers >/dev/null; then systemd-sysusers /usr/lib/sysusers.d/mrcuda.conf; fi
# A running server is not restarted: its jobs would lose their GPUs. systemctl reload mrcuda has the new one take over, and they go on.
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
