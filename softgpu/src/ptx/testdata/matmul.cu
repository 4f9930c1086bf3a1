extern "C" __global__ void matmul(const float*A,const float*B,float*C,int n){
 __shared__ float as[16][16],bs[16][16]; int tx=threadIdx.x,ty=threadIdx.y; int r=blockIdx.y*16+ty,c=blockIdx.x*16+tx; float s=0;
 for(int t=0;t<n/16;t++){as[ty][tx]=A[r*n+t*16+tx];bs[ty][tx]=B[(t*16+ty)*n+c];__syncthreads();
 #pragma unroll
 for(int k=0;k<16;k++)s+=as[ty][k]*bs[k][tx];__syncthreads();} C[r*n+c]=s;}
