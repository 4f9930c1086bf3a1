/* An NVML that measures the utilization and the temperature of one GPU, whatever its UUID, and nothing else. While the file named by
   SOFTGPU_NVML_GATE is there, it hangs. */
#include <stdlib.h>
#include <unistd.h>

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = (void *)uuid;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2])
{
    const char *gate = getenv("SOFTGPU_NVML_GATE");
    while (gate && access(gate, F_OK) == 0)
        usleep(10000);
    rates[0] = 0;
    rates[1] = 101;
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees)
{
    *degrees = 17;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 1;
    return 3; /* NVML_ERROR_NOT_SUPPORTED */
}
