#!/bin/sh
# "remove" is dpkg's word and 0 is rpm's; in an upgrade, which has other words, servers go on.
case "$1" in
    remove | 0) if [ -d /run/systemd/system ]; then systemctl disable --now mrcuda.service mrcuda-agent.service; fi ;;
esac
